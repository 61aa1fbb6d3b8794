"""Kubeconfigs as kubectl merges them: the first file that names a context, cluster or user defines it, and the first that sets a current context decides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Object = dict[str, Any]

_FIELDS = {"contexts": "context", "clusters": "cluster", "users": "user"}
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


class KubeconfigError(Exception):
    """A file is not a kubeconfig, or the files do not lead to a cluster."""


class CredentialsError(Exception):
    """A kubeconfig names credentials that cannot be used; without them, requests would be anonymous."""


class Choice(NamedTuple):
    """One context of the merged files; every path is absolute.

    Attributes
    ----------
    name : str
        Name of the context.
    namespace : str
        Namespace of the context.
    cluster : dict
        What is set of its cluster.
    user_name : str
        Empty if the context names no user.
    user : dict
        What is set of its user.
    save : callable
        Writes the user's file, with what a client library has changed in ``auth-provider``.
    """

    name: str
    namespace: str
    cluster: Object
    user_name: str
    user: Object
    save: Callable[[], None]

    def config(self) -> Object:
        """Return a kubeconfig of this context alone."""
        return {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": self.cluster}],
            "users": [{"name": "u", "user": self.user}],
        }


class _File(NamedTuple):
    path: Path
    document: Object


def choose(file: str | None, context: str | None) -> Choice | None:
    """Return the context that kubectl would use, or None if no file has any content.

    Parameters
    ----------
    file : str or None
        The only file; None: the files of ``KUBECONFIG``, or ``~/.kube/config``.
    context : str or None
        Name of the context; None: the first current context that is not empty.

    Raises
    ------
    KubeconfigError, CredentialsError
    OSError
        If a file cannot be read.
    """
    if file:
        paths = [Path(file)]
    elif listed := os.environ.get("KUBECONFIG"):
        paths = [path for path in map(Path, filter(None, listed.split(os.pathsep))) if path.exists()]
    else:
        paths = [path for path in _default() if path.exists()]
    files = [_File(path, _document(path)) for path in paths]
    if not any(each.document for each in files):
        return None
    where = os.pathsep.join(map(str, paths))
    name = context or next((one for each in files if (one := each.document.get("current-context"))), None)
    if name is None:
        raise KubeconfigError(f"{where}: current-context is not set")
    match = _named(files, "contexts", name)
    if match is None:
        raise KubeconfigError(f"{where}: context {name} does not exist")
    chosen = match[0]
    cluster = _named(files, "clusters", str(chosen.get("cluster") or ""))
    if cluster is None:
        raise KubeconfigError(f"{where}: cluster {chosen.get('cluster')} of context {name} does not exist")
    if not isinstance(cluster[0].get("server"), str):
        raise KubeconfigError(f"{where}: cluster {chosen['cluster']} has no server")
    user_name = str(chosen.get("user") or "")
    user = _named(files, "users", user_name) if user_name else ({}, files[0])
    if user is None:
        raise KubeconfigError(f"{where}: user {user_name} of context {name} does not exist")
    return Choice(
        name,
        str(chosen.get("namespace") or "default"),
        _resolved(*cluster),
        user_name,
        _strongest(user_name, _resolved(*user)),
        lambda: _save(user[1]),
    )


def _default() -> list[Path]:
    try:
        return [Path.home() / ".kube" / "config"]
    except RuntimeError:  # a user without a home, as containers can have
        return []


def _named(files: list[_File], kind: str, name: str) -> tuple[Object, _File] | None:
    """Return the first entry of a name, and its file."""
    for each in files:
        for one in each.document.get(kind) or ():
            if one["name"] == name:
                entry = one.get(_FIELDS[kind]) or {}
                if not isinstance(entry, dict):
                    raise _foreign(each.path, f"{_FIELDS[kind]} {name} is not an object")
                return entry, each
    return None


def _resolved(entry: Object, of: _File) -> Object:
    """Return what is set in an entry; paths are relative to their file, commands with a slash too."""
    fields = {key: value for key, value in entry.items() if value not in (None, "")}
    folder = of.path.absolute().parent
    for key in _PATHS:
        if key in fields:
            fields[key] = str(folder / str(fields[key]))
    match fields.get("exec"):
        case {"command": str(command), **rest} if os.sep in command:
            fields["exec"] = {**rest, "command": str(folder / command)}
    return fields


def _strongest(name: str, user: Object) -> Object:
    """Return a user without the credentials that kubectl passes over: a file goes before a token, a token before a plug-in."""
    impersonated = [key for key in _IMPERSONATION if key in user]
    if impersonated:
        raise CredentialsError(
            f"user {name} sets {', '.join(impersonated)}: eldr does not support impersonation; choose a context of another user"
        )
    if "tokenFile" in user:
        user.pop("token", None)
    if "token" in user or "tokenFile" in user:
        for weaker in ("exec", "auth-provider"):
            user.pop(weaker, None)
    return user


def _save(of: _File) -> None:
    of.path.write_text(yaml.safe_dump(of.document, default_flow_style=False))


def _document(path: Path) -> Object:
    try:
        document = yaml.safe_load(path.read_text())
    except UnicodeDecodeError:
        raise _foreign(path, "it is not text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _foreign(path, " ".join(str(error).split())) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise _foreign(path, "it has no clusters, contexts and users")
    for kind in _FIELDS:
        listed = document.get(kind) or []
        if not isinstance(listed, list) or not all(isinstance(one, dict) and "name" in one for one in listed):
            raise _foreign(path, f"{kind} is not a list of named objects")
        names = [one["name"] for one in listed]
        if not all(isinstance(name, str) for name in names):
            raise _foreign(path, f"a name in {kind} is not a text")
        if len(set(names)) < len(names):
            raise _foreign(path, f"two {kind} have the same name")
    return document


def _foreign(path: Path, why: str) -> KubeconfigError:
    return KubeconfigError(f"{path} is not a kubeconfig: {why}")
