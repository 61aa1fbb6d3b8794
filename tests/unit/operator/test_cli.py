"""What the operator logs at its start."""

import logging

import pytest
from click.testing import CliRunner

import eldr
from eldr_operator import cli


@pytest.mark.parametrize(
    ("arguments", "served"),
    [(["--all-namespaces"], "all namespaces"), (["--namespace=a", "--namespace=b"], "namespaces a, b")],
)
def test_the_first_line_says_version_namespaces_and_image(arguments, served, monkeypatch, caplog):
    async def serve(settings):
        logging.getLogger("kopf._core.reactor.running").warning("OS signals are ignored: no main thread.")
        logging.getLogger("kopf._core.reactor.running").warning("something else")

    monkeypatch.setattr(cli, "serve", serve)
    caplog.set_level("INFO")
    done = CliRunner().invoke(cli.command, [*arguments, "--image=r.example.com/eldr:7"])
    assert done.exit_code == 0, done.output
    first, *others = (record.getMessage() for record in caplog.records)
    assert first == (
        f"eldr operator {eldr.__version__} serves {served}; image of routers, simulated engines and fits: r.example.com/eldr:7"
    )
    assert others == ["something else"], "kopf's warning about signals is left out"
