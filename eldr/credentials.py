"""Address and credentials of an API server: one configuration, which every client of ELDR gets."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import kubernetes
from kubernetes.config.kube_config import KubeConfigLoader

from eldr.kubeconfig_files import Choice, CredentialsError, KubeconfigError, choose


class Configuration(kubernetes.client.Configuration):  # type: ignore[misc]
    """A configuration whose header is trimmed, and never printed."""

    def get_api_key_with_prefix(self, identifier: str, alias: str | None = None) -> str | None:
        """Return the value of the Authorization header, None if there is none.

        Raises
        ------
        CredentialsError
            If it cannot be read, or no header can hold it.
        """
        try:
            header: str | None = super().get_api_key_with_prefix(identifier, alias)
        except kubernetes.config.ConfigException as error:
            raise CredentialsError(_line(error)) from None
        if header is None:
            return None
        scheme, _, token = header.partition(" ")
        header = f"{scheme} {token.strip()}"
        if not (header.isascii() and header.isprintable()):
            raise CredentialsError("the token has characters that no header can hold")
        return header


class Loaded(NamedTuple):
    """Where an API server is, and who asks it.

    Attributes
    ----------
    configuration : Configuration
    namespace : str
        Namespace of the context.
    context : str or None
        Name of the context; None in a pod of that cluster.
    """

    configuration: Configuration
    namespace: str
    context: str | None


def load(context: str | None = None, file: str | None = None) -> Loaded:
    """Return what kubectl would use; in a pod without a kubeconfig, the pod's own service account.

    Parameters
    ----------
    context : str, optional
        Default: the current one.
    file : str, optional
        Default: the files of ``KUBECONFIG``, or ``~/.kube/config``.

    Raises
    ------
    KubeconfigError, CredentialsError
    OSError
        If a file cannot be read.
    """
    configuration = Configuration()
    chosen = choose(file, context)
    try:
        if chosen is not None:
            _fill(configuration, chosen)
        elif context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            where = file or os.environ.get("KUBECONFIG") or "~/.kube/config"
            raise KubeconfigError(f"{where} does not exist, or is empty")
    except kubernetes.config.ConfigException as error:
        raise KubeconfigError(_line(error).rstrip(".")) from None
    _decide_proxy(configuration, chosen.cluster.get("proxy-url") if chosen else None)
    configuration.get_api_key_with_prefix("BearerToken")
    if chosen is None:
        return Loaded(configuration, "default", None)
    return Loaded(configuration, chosen.namespace, chosen.name)


def _fill(configuration: Configuration, chosen: Choice) -> None:
    plugin = _plugin(chosen.user)
    said: list[str] = []
    try:
        with _logged_errors(said):
            KubeConfigLoader(
                config_dict=chosen.config(), config_base_path=None, config_persister=chosen.save
            ).load_and_set(configuration)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if not plugin:
            raise KubeconfigError(f"context {chosen.name}: {_line(error)}") from None
        said.append(_line(error))
    if plugin and not _has_credentials(configuration):
        why = "; ".join(said) or "this program does not know it"
        raise CredentialsError(f"{plugin} of user {chosen.user_name} gives no credentials: {why}")
    if "tokenFile" in chosen.user:
        configuration.refresh_api_key_hook = partial(_reread, Path(chosen.user["tokenFile"]))


def _reread(token: Path, into: Any) -> None:
    with contextlib.suppress(OSError, ValueError):  # the last token that could be read stays
        into.api_key["BearerToken"] = f"Bearer {token.read_text()}"


def _decide_proxy(configuration: Any, of_the_cluster: str | None) -> None:
    """Set the proxy: the cluster's own, else the environment's, which never applies to this machine itself."""
    proxy = of_the_cluster or _proxy_of(configuration.host)
    if proxy and urlsplit(proxy).scheme not in {"http", "https"}:
        scheme = proxy.partition("://")[0]
        raise KubeconfigError(f"the proxy of {configuration.host} speaks {scheme}: expected http or https")
    configuration.proxy = proxy
    configuration.no_proxy = ""  # the decision is made


def _proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a URL."""
    at = urlsplit(url)
    host = at.hostname or ""
    if _is_here(host) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(at.scheme)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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


@contextlib.contextmanager
def _logged_errors(said: list[str]) -> Iterator[None]:
    """Collect what the library logs: it logs why a plug-in failed, and continues without credentials."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(" ".join(record.getMessage().split()))

    handler, root = Handler(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
