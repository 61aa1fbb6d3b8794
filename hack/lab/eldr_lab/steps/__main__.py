"""``python -m eldr_lab.steps law`` and ``policies``."""

from __future__ import annotations

import click

from eldr_lab.steps import law_bench, policies_bench


@click.group()
def main() -> None:
    """Measure decode steps of real engines on this machine."""


main.add_command(law_bench.command)
main.add_command(policies_bench.command)

if __name__ == "__main__":
    main()
