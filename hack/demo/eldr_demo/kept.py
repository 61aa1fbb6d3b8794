"""The signature log that a demo leaves behind, and how to ask the pool simulator about it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from eldr.kubeconfig import ClusterError
from eldr.siglog import Record, frame, read
from eldr.simulate.cluster import read_deployment
from eldr_demo import objects
from eldr_demo.load import Outcome
from eldr_demo.report import Phase


def keep(kubeconfig: str, folder: Path, shifted: float, known: Sequence[str]) -> str:
    """Write a log for each mix, of all routers together, and return what to say about them.

    Parameters
    ----------
    folder : Path
        Created if missing; holds ``first.siglog`` and ``second.siglog`` afterwards, if anything was logged.
    shifted : float
        When the second mix began, Unix time.
    known : sequence of str
        Options that tell ``eldr simulate`` of the pool.
    """
    try:
        with tempfile.TemporaryDirectory() as temporary:
            read_deployment(objects.NAME, Path(temporary), namespace=objects.NAMESPACE, kubeconfig=kubeconfig)
            records = sorted(read(Path(temporary)), key=lambda one: one.time)
    except ClusterError as error:
        return f"signature log: {error.reason}: {error}"
    return write(records, folder, shifted, known)


def write(records: Iterable[Record], folder: Path, shifted: float, known: Sequence[str]) -> str:
    """Do :func:`keep`'s part with files, and its words."""
    frames: dict[str, list[bytes]] = {"first": [], "second": []}
    for record in records:
        frames["second" if record.time >= shifted else "first"].append(frame(record))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for mix, some in frames.items():
        path = folder / f"{mix}.siglog"
        path.unlink(missing_ok=True)
        if some:
            path.write_bytes(b"".join(some))
            written.append(path)
    said = [f"signature log: {', '.join(map(str, written)) or 'nothing was logged'}"]
    if known and written:
        said.append("what the pool simulator makes of it; compare its experts with those of the rows above:")
        rest = shlex.join(known)
        said += [f"  eldr simulate --log {path} {rest}  # {path.stem} mix, fitted" for path in written]
        if len(written) > 1:
            both = " ".join(f"--log {path}" for path in written)
            said.append(f"  eldr simulate {both} {rest}  # second mix, stale")
    return "\n".join(said)


def rate(phases: Sequence[Phase], outcomes: Sequence[Outcome]) -> float:
    """Return how many requests per second came in the measured spans; chance makes it another one than was asked for."""
    seconds = sum(phase.ended - phase.measured_from for phase in phases)
    came = sum(phase.measured_from <= o.started < phase.ended for phase in phases for o in outcomes)
    return came / seconds if seconds else 0.0
