"""The command ``eldr rollout``."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from eldr import contract
from eldr.kubeconfig import ApiServer, ClusterError, Object, foreign
from eldr.options import FiniteRange, of_cluster
from eldr.rollout import revisions, text
from eldr.rollout.revisions import ENGINES, Revision, UndoError

_RIGHTS = (
    "rollouts take get and patch of eldrdeployments, and list of controllerrevisions.apps; "
    "status does without patch"
)
_ENDED = {"RolloutComplete", "RevisionHeld"}
"""Reasons of Progressing with which all pods have the template that they are to have, ready or not."""
_READY = {"PrefillReady", "DecodeReady", "RouterReady"}
_POLL_SECONDS = 2.0

_Read = TypeVar("_Read")


class Target:
    """One EldrDeployment in a cluster."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self._server = server
        self._name = name
        self._what = f"{contract.KIND_DEPLOYMENT} {name}"
        self._path = server.deployment_path(name)

    def deployment(self) -> Object:
        """Return the resource."""
        return self._server.deployment(self._name)

    def revisions(self) -> list[Revision]:
        """Return its revisions."""
        path = f"/apis/apps/v1/namespaces/{self._server.namespace}/controllerrevisions"
        query = [("labelSelector", f"{contract.LABEL_DEPLOYMENT}={self._name},{contract.LABEL_REVISION_OF}")]
        items = self._server.read(path, "its ControllerRevisions", query).get("items")
        if not isinstance(items, list):
            raise foreign("its ControllerRevisions", "a list in items")
        return [*filter(None, map(revisions.revision, items))]

    def set(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change fields of ``rollout`` of roles; print the cluster first."""
        click.echo(f"cluster: {self._server.cluster}", err=True)
        spec = {role: {"rollout": dict(fields)} for role, fields in changes.items()}
        self._server.merge(self._path, self._what, {"spec": spec})


@click.group("rollout", context_settings={"auto_envvar_prefix": "ELDR_ROLLOUT", "show_default": True})
@of_cluster
@click.pass_context
def command(
    ctx: click.Context, *, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> None:
    """Show, pause, resume and undo the rollouts of an EldrDeployment, with your kubeconfig.

    These commands set prefill.rollout and decode.rollout of the resource. If you keep it in Git, set the fields there.
    """
    ctx.obj = (context, namespace, kubeconfig)


def _led(command: Callable[..., None]) -> Callable[..., None]:
    """Take the options that lead to a deployment after the sub-command, too; those before it are for who writes them there."""

    def led(
        before: tuple[str | None, str | None, Path | None],
        /,
        *,
        context: str | None,
        namespace: str | None,
        kubeconfig: Path | None,
        **plain: Any,
    ) -> None:
        given = [own or early for own, early in zip((context, namespace, kubeconfig), before, strict=True)]
        where = [str(one) if one else None for one in given]
        command(lambda name: Target(ApiServer(*where, rights=_RIGHTS), name), **plain)

    functools.update_wrapper(led, command)
    return of_cluster(click.pass_obj(led))


_NAME = click.argument("name")
_ROLE = click.option(
    "--role", "roles", type=click.Choice(ENGINES), multiple=True, help="Only this role; may be repeated."
)


@command.command("status")
@_NAME
@click.option(
    "--wait", is_flag=True, help="Wait until the rollout has ended; exit code 1 if it did not succeed."
)
@click.option(
    "--timeout", type=FiniteRange(min=0), default=0.0, help="Seconds that --wait waits; 0: without end."
)
@_led
def status(make: Any, *, name: str, wait: bool, timeout: float) -> None:
    """Show the revisions of NAME, those in use first, and what needs attention."""
    with _explained():
        target = make(name)
        deployment, until = target.deployment(), time.monotonic() + (timeout or math.inf)
        while wait and (code := _code(deployment)) is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            deployment = _patiently(target.deployment, until)
        history = _patiently(target.revisions, until) if wait else target.revisions()
        for line in text.lines(deployment, history):
            click.echo(line)
        if wait and code is None:
            raise click.ClickException(f"the rollout has not ended within {timeout:g} s")
        if wait and code:
            raise SystemExit(code)


@command.command("pause")
@_NAME
@_ROLE
@_led
def pause(make: Any, *, name: str, roles: tuple[str, ...]) -> None:
    """Keep the present template of the pods of NAME."""
    _set(make, name, {role: {"pause": "Enabled"} for role in roles or ENGINES})


@command.command("resume")
@_NAME
@_ROLE
@_led
def resume(make: Any, *, name: str, roles: tuple[str, ...]) -> None:
    """Roll the pods of NAME to what its spec asks for: ends pause and undo."""
    _set(make, name, {role: {"pause": "Disabled", "revision": ""} for role in roles or ENGINES})


@command.command("undo")
@_NAME
@_ROLE
@click.option("--to-revision", help="Name of the revision.", show_default="the last one that worked")
@_led
def undo(make: Any, *, name: str, roles: tuple[str, ...], to_revision: str | None) -> None:
    """Give the pods of NAME an earlier revision, until `eldr rollout resume`.

    Without --role, the role whose rollout is not over, or ended last, goes back. The other role goes back too if they could not
    exchange KV otherwise.
    """
    if to_revision and roles:
        raise click.UsageError("--to-revision names the role already; leave --role out")
    with _explained():
        target = make(name)
        chosen = revisions.before(target.deployment(), target.revisions(), roles, to=to_revision or "")
    # a role that is paused would stay as it is
    _set(make, name, {role: {"revision": back.name, "pause": "Disabled"} for role, back in chosen.items()})


def _set(make: Any, name: str, changes: Mapping[str, Mapping[str, str]]) -> None:
    with _explained():
        make(name).set(changes)
    for role, fields in changes.items():
        click.echo(
            f"{role}: "
            + ", ".join(f"rollout.{key} is now {value or 'empty'}" for key, value in fields.items())
        )


def _patiently(read: Callable[[], _Read], until: float) -> _Read:
    """Read what an API server that restarts, or has too much to do, may not answer at once; say so each time that its reason changes."""
    reported = ""
    while True:
        try:
            return read()
        except ClusterError as error:
            if not error.passes or time.monotonic() >= until:
                raise
            if str(error) != reported:
                reported = str(error)
                click.echo(f"{error.reason}: {error}; tries again", err=True)
        time.sleep(_POLL_SECONDS)


def _code(deployment: Object) -> int | None:
    """Return the exit code of a rollout that has ended."""
    progressing = revisions.condition(deployment, "Progressing")
    if not progressing or not revisions.is_observed(deployment):
        return None
    if progressing.get("status") == "False" or progressing.get("reason") == "RolloutPaused":
        return 1
    if revisions.condition(deployment, "ConfigValid").get("status") == "False":
        return 1  # some of the spec cannot be used: those pods stay as they are
    is_ready = all(revisions.condition(deployment, name).get("status") == "True" for name in _READY)
    return 0 if progressing.get("reason") in _ENDED and is_ready else None


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (ClusterError, UndoError) as error:
        raise click.ClickException(f"{error.reason}: {error}") from error
