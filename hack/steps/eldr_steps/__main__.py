"""``python -m eldr_steps law`` and ``policies``."""

from __future__ import annotations

import click

from eldr_steps import law_bench, policies_bench


@click.group()
def main() -> None:
    """Measure decode steps of real engines on this machine."""


main.add_command(law_bench.command)
main.add_command(policies_bench.command)

if __name__ == "__main__":
    main()
