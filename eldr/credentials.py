"""A kubeconfig as the client library reads it, but for what that passes over: files of another kind, and credentials that fail."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import kubernetes
import yaml

_DEFAULT: Final = "~/.kube/config"
_LISTS: Final = ("clusters", "contexts", "users")


class KubeconfigError(Exception):
    """A file is not a kubeconfig."""


class CredentialsError(Exception):
    """A kubeconfig names credentials that cannot be had; without them every request would be one of nobody."""


def load(configuration: Any, context: str | None, file: str | None) -> tuple[str, bool]:
    """Fill in a configuration; return the namespace that belongs to it, and whether this is a pod of that cluster.

    Parameters
    ----------
    configuration : kubernetes.client.Configuration
    context : str or None
        None: the current one.
    file : str or None
        Paths as in ``KUBECONFIG``; None: what that says, or ``~/.kube/config``.

    Raises
    ------
    KubeconfigError, CredentialsError
    kubernetes.config.ConfigException
        If there is no such file or context, or it lacks something.
    """
    # the library looks at the variable once, when it is imported
    file = file or os.environ.get("KUBECONFIG") or _DEFAULT
    users = _users(file)
    try:
        known, active = kubernetes.config.list_kube_config_contexts(file)
    except kubernetes.config.ConfigException:
        if context is not None or "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise
        kubernetes.config.load_incluster_config(client_configuration=configuration)
        return "default", True
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise KubeconfigError(f"{file} is not a kubeconfig: {_line(error)}") from None
    if context is not None:
        active = next((one for one in known if one["name"] == context), None)
    chosen = (active or {}).get("context") or {}
    name = str(chosen.get("user") or "")
    if name and name not in users:
        raise CredentialsError(f"user {name} is not in {file}, though the context names it")
    plugin = _plugin(users.get(name))
    said: list[str] = []
    try:
        with _heard(said):
            kubernetes.config.load_kube_config(file, context=context, client_configuration=configuration)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if not plugin:
            raise KubeconfigError(f"{file} is not a kubeconfig: {_line(error)}") from None
        said.append(_line(error))
    if plugin and not _has_credentials(configuration):
        why = "; ".join(said) or "this program does not know it"
        raise CredentialsError(f"{plugin} of user {name} gives no credentials: {why}")
    return str(chosen.get("namespace") or "default"), False


def _users(paths: str) -> dict[str, Any]:
    """Return the users of all files by name, the first of a name; KubeconfigError if one is of another kind."""
    found: dict[str, Any] = {}
    for part in filter(None, paths.split(os.pathsep)):
        path = Path(part).expanduser()
        if not path.exists():
            continue
        document = _document(path)
        for one in document.get("users") or ():
            found.setdefault(one["name"], one.get("user"))
    return found


def _document(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text())
    except UnicodeDecodeError:
        raise KubeconfigError(f"{path} is not a kubeconfig: it is not text") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KubeconfigError(f"{path} is not a kubeconfig: {_line(error)}") from None
    if found is None:
        return {}  # the library says that it is empty
    if not isinstance(found, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig: it has no clusters, contexts and users")
    for key in _LISTS:
        listed = found.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(one, dict) and "name" in one for one in listed):
            raise KubeconfigError(f"{path} is not a kubeconfig: {key} is not a list of named objects")
        for one in listed:
            if not isinstance(one["name"], str):
                raise KubeconfigError(f"{path} is not a kubeconfig: a name in {key} is not a text")
    return found


def _plugin(user: Any) -> str:
    """Return how messages call what makes a user's credentials; empty where they are in the file, or there are none."""
    match user:
        case {"exec": {"command": command}}:
            return f"credential plug-in {command}"
        case {"exec": _}:
            return "the credential plug-in without a command"
        case {"auth-provider": {"name": name}}:
            return f"auth-provider {name}"
    return ""


def _has_credentials(configuration: Any) -> bool:
    token = str(configuration.api_key.get("BearerToken") or "").strip()
    return token not in {"", "Bearer"} or configuration.cert_file is not None


@contextmanager
def _heard(said: list[str]) -> Iterator[None]:
    """Take what the library writes into the log: there it tells why a plug-in failed, and goes on without."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(" ".join(record.getMessage().split()))

    ear, root = Ear(logging.ERROR), logging.getLogger()
    root.addHandler(ear)
    try:
        yield
    finally:
        root.removeHandler(ear)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
