"""The `eldr` command. Sub-commands are imported when they are called, so that each image pays only for what it runs."""

from __future__ import annotations

import importlib

import click

import eldr

COMMANDS = {
    "router": ("eldr_router.cli", "Route OpenAI requests: prefill, then the decode engine that fits best."),
    "operator": ("eldr_operator.cli", "Reconcile EldrDeployment and EldrFit in a cluster."),
    "fit": ("eldr.fit.cli", "Turn a signature log into a centroid set."),
    "simulate": (
        "eldr.simulate.cli",
        "Say what each placement policy would bring, on your traffic or on a workload.",
    ),
    "status": (
        "eldr.status.cli",
        "Show on one screen what an EldrDeployment saves, how its traffic drifts, and its fits.",
    ),
    "rollout": (
        "eldr.rollout.cli",
        "Show, pause, resume and undo the rollouts of an EldrDeployment.",
    ),
    "engine-plugin": ("eldr.engine.install", "Copy the vLLM plug-in to where an engine imports it."),
    "engine-sim": ("eldr.sim.cli", "Serve a simulated prefill or decode engine."),
}


class LazyGroup(click.Group):
    """A command group that imports a sub-command only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List sub-commands without importing them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one sub-command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the help of all sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(eldr.__version__)
def main() -> None:
    """ELDR: expert-locality-aware routing for mixture-of-experts serving."""
