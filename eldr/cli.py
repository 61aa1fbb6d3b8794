"""The `eldr` command. Sub-commands are imported when they are called, so that each image pays only for what it runs."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

import eldr

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
"""Errors of a disk that takes no more writes: no fault of the program."""


class SubCommand(NamedTuple):
    """A sub-command: where it is, what of the distribution it needs, and its help."""

    module: str
    extra: str
    help: str


COMMANDS = {
    "router": SubCommand(
        "eldr_router.cli", "router", "Route OpenAI requests: prefill, then the decode engine that fits best."
    ),
    "operator": SubCommand(
        "eldr_operator.cli", "operator", "Reconcile EldrDeployment and EldrFit in a cluster."
    ),
    "fit": SubCommand("eldr.fit.cli", "fit", "Turn a signature log into a centroid set."),
    "simulate": SubCommand(
        "eldr.simulate.cli",
        "cli",
        "Say what each placement policy would bring, on your traffic or on a workload.",
    ),
    "status": SubCommand(
        "eldr.status.cli",
        "cli",
        "Show on one screen what an EldrDeployment saves, how its traffic drifts, and its fits.",
    ),
    "compare": SubCommand(
        "eldr.compare.cli",
        "cli",
        "Measure what an EldrDeployment's policy brings against another one, on its own traffic.",
    ),
    "doctor": SubCommand(
        "eldr.doctor.cli",
        "cli",
        "Find what keeps an EldrDeployment from serving as it should, and say what to do.",
    ),
    "rollout": SubCommand(
        "eldr.rollout.cli", "cli", "Show, pause, resume and undo the rollouts of an EldrDeployment."
    ),
    "smoke": SubCommand(
        "eldr.smoke.cli", "cli", "Send one request to an EldrDeployment, end to end, and check the answer."
    ),
    "engine-plugin": SubCommand(
        "eldr.engine.install", "", "Copy the vLLM plug-in to where an engine imports it."
    ),
    "engine-sim": SubCommand("eldr.sim.cli", "sim", "Serve a simulated prefill or decode engine."),
}


class LazyGroup(click.Group):
    """A command group that imports a sub-command only when it runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # click suggests one of these names

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run; report a disk that takes no more writes in one line."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in _DISK:
                raise
            where = f" {error.filename}" if error.filename else ""
            remedy = "free some space, or name a place that can be written to"
            sys.exit(f"Error: cannot write{where}: {error.strerror}; {remedy}")

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List sub-commands without importing them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one sub-command."""
        if cmd_name not in COMMANDS:
            return None
        _end_on_sigterm()
        with _explained(lambda: cmd_name):
            command = importlib.import_module(COMMANDS[cmd_name].module).command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a sub-command; some of what it needs is imported only then."""
        with _explained(lambda: ctx.invoked_subcommand):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the help of all sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


def _end_on_sigterm() -> None:
    """End by SIGTERM from the beginning: process 1 of a container ignores it by default.

    A pod that is deleted while its program is only imported would stay for its full grace period, with its accelerator.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


@contextmanager
def _explained(name: Callable[[], str | None]) -> Iterator[None]:
    """Report in one line what a sub-command lacks; its name may be known only once it fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        if remedy := _remedy(name(), error):
            raise click.ClickException(remedy) from error
        raise


def _remedy(name: str | None, error: ModuleNotFoundError) -> str:
    """Return which extra brings what a sub-command lacks; empty if none does."""
    command = COMMANDS.get(name or "")
    package = (error.name or "").partition(".")[0]
    if command is None or not command.extra or not package or package.startswith("eldr"):
        return ""
    extra = f"install ELDR with its extra {command.extra}, by pipx install '.[{command.extra}]' or uv tool install '.[{command.extra}]' in its source"
    return f"eldr {name} needs the package {package}, which is not installed; {extra}"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(eldr.__version__)
def main() -> None:
    """ELDR: expert-locality-aware routing for mixture-of-experts serving."""
