"""Ask the reference (``reference.py``), which runs in the environment that holds torch."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

PACKAGE_ROOT = Path(__file__).parents[1]
MODEL = PACKAGE_ROOT / "model"
"""The trained model."""

Counts = list[list[int]]


class ReferenceUnavailableError(RuntimeError):
    """The reference process died, or said nothing in time."""


class NextToken(NamedTuple):
    """The most likely next token, the second one, the distance of their logits, and below which float32 may confuse them."""

    best: int
    second: int
    gap: float
    tolerance: float


class Tie(NamedTuple):
    """A choice that float32 may make otherwise: scores of what is chosen and of what is rejected are that close.

    One expert each, or as many as change with a group of experts.
    """

    position: int
    layer: int
    chosen: Sequence[int]
    rejected: Sequence[int]
    gap: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Expert counts of one request.

    Attributes
    ----------
    prefill, decode : list of list of int, shape (n_layers, n_experts)
        Of the prompt's N positions, and of positions N .. N+G-2.
    router_gaps : list of list of float, shape (n_positions, n_layers)
        How clear each router's choice was.
    ties : list of Tie
        The choices that were not clear.
    next : list of NextToken
        One for each position asked for.
    """

    prefill: Counts
    decode: Counts
    router_gaps: list[list[float]]
    ties: list[Tie]
    next: list[NextToken]


def run_in(
    environment: Path,
    module: str,
    *arguments: str,
    paths: Sequence[Path] = (),
    stderr: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a module with an environment's interpreter, its stdin and stdout piped.

    Parameters
    ----------
    environment : Path
        What ``hack/vllm/install`` printed.
    module : str
        Its whole name.
    paths : sequence of Path
        Where modules of other packages lie.
    """
    return subprocess.Popen(
        [environment / "bin" / "python", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE_ROOT, *paths))),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
    )


class ReferenceClient:
    """A running reference; use it in a ``with`` block.

    Parameters
    ----------
    environment : Path
        What ``hack/vllm/install`` printed.
    model : Path
        A Hugging Face model directory.
    patience : float
        Seconds to wait for one answer, or for the start.

    Attributes
    ----------
    layers, experts, top_k : int
        The model's shape.
    """

    def __init__(self, environment: Path, model: Path = MODEL, *, patience: float = 180.0) -> None:
        self._patience = patience
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._rest = b""
        self._process = run_in(environment, "eldr_tiny_moe.reference", str(model), stderr=self._stderr)
        try:
            hello = self._read()
        except BaseException:
            self.close()
            raise
        self.layers, self.experts, self.top_k = (int(hello[k]) for k in ("layers", "experts", "top_k"))

    def ask(
        self,
        prompt: Sequence[int],
        generated: Sequence[int] = (),
        positions: Sequence[int] = (),
        swaps: Sequence[Tie] = (),
        images: Sequence[str] = (),
    ) -> Answer:
        """Return the counts of a prompt and of what was generated after it.

        Parameters
        ----------
        swaps : sequence of Tie
            Choices that are made otherwise, with all that follows from them.
        images : sequence of str
            Of the prompt, as ``data:`` URLs.

        Raises
        ------
        ValueError
            If the request is wrong; the message names the field.
        ReferenceUnavailableError
            If the process died or took too long.
        """
        asked = {"prompt": prompt, "generated": generated, "positions": positions, "images": images}
        fields = {name: list(value) for name, value in asked.items()} | {"swaps": [tie[:4] for tie in swaps]}
        line = json.dumps(fields).encode()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ReferenceUnavailableError(f"the reference is gone: {self._complaint()}") from error
        answer = self._read()
        if "error" in answer:
            raise ValueError(answer["error"])
        answer["next"] = [NextToken(*entry) for entry in answer["next"]]
        answer["ties"] = [
            Tie(position, layer, tuple(chosen), tuple(rejected), gap)
            for position, layer, chosen, rejected, gap in answer["ties"]
        ]
        return Answer(**answer)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + self._patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ReferenceUnavailableError(f"the reference said nothing for {self._patience:g} s")
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise ReferenceUnavailableError(f"the reference ended: {self._complaint()}")
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _complaint(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")[-2000:]

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # it died with a request unread
                    continue
        self._process.kill()  # it holds nothing that wants saving
        self._process.wait()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
