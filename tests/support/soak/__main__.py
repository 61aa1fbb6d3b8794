"""``python -m tests.support.soak``: rounds of a soak, one router and two in turn, and their tables."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.support.soak.run import Round, run
from tests.support.soak.table import table


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of all rounds together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument(
        "--routers", type=int, action="append", help="of each round, repeatable; default: 1, then 2"
    )
    parser.add_argument("--folder", type=Path, help="for the logs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the processes of the round end with it
    folder = options.folder or Path(tempfile.mkdtemp(prefix="eldr-soak-"))
    rounds = options.routers or [1, 2]
    _say(f"seed {options.seed}, logs in {folder}")
    faults = 0
    for number, routers in enumerate(rounds):
        seconds = options.minutes * 60 / len(rounds)
        report = run(
            Round(
                folder=folder / f"round{number}",
                seed=options.seed + number,
                seconds=seconds,
                routers=routers,
                clients=options.clients,
            )
        )
        _say(f"{table(report)}\n")
        for fault in report.faults[:20]:
            _say(f"FAULT {fault}\n")
        faults += len(report.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
