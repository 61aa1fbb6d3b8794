"""Options and variables of routers that would undo what the operator has set up. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validation import arguments, names

Object = dict[str, Any]

_VARIABLES: Final = "ELDR_ROUTER_"
"""Beginning of the variables that stand for options."""
_OWNED = "remove it: the operator sets it, and clients, engines and routers find each other by it"
_SOURCE = "remove it: routers of an EldrDeployment learn engines, settings and centroids from the API server"
_REMEDIES: Mapping[str, str] = {
    "--source": _SOURCE,
    "--workers": _SOURCE,
    "--centroids": _SOURCE,
    "--peer": _SOURCE,
    "--namespace": _SOURCE,
    "--deployment": _SOURCE,
    "--host": _OWNED,
    "--port": _OWNED,
    "--admin-host": _OWNED,
    "--admin-port": _OWNED,
    "--api-keys": "remove it: spec.router.apiKeysSecret names the Secret with the keys",
    "--tls-certificate": "remove it: spec.router.tlsSecret names the Secret with the certificate",
    "--tls-key": "remove it: spec.router.tlsSecret names the Secret with the key",
    "--admin-tls-certificate": "remove it: spec.router.adminTLS names the Secret with the certificate",
    "--admin-tls-key": "remove it: spec.router.adminTLS names the Secret with the key",
    "--admin-authority": "remove it: spec.router.adminTLS names the ConfigMap with the authority",
    "--admin-token-file": "remove it: the operator mounts the Secret with the token",
    "--log-dir": "remove it: fits read the log where the operator's volume is",
    "--log-mebibytes": "remove it: the size of the log is spec.signatures.retentionMebibytes",
    "--log-hours": "remove it: the age of the log is spec.signatures.retentionHours",
    "--drain-seconds": "remove it: spec.router.drainSeconds sets it, and how long a pod may take to end",
    "--help": "remove it: the router would print its options and end",
}
"""By option: what to do instead. Routers take no beginnings of options."""


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused options and variables of ``spec.router``."""
    spec = cr.spec.router
    joined = arguments.joined(spec.args, "spec.router.args")
    return [*_options(spec.args), *joined, *variables(spec.env, "spec.router.env")]


def _options(args: Iterable[str]) -> Iterator[Problem]:
    for index, argument in enumerate(args):
        if remedy := _REMEDIES.get(argument.partition("=")[0]):
            yield Problem("InvalidArgument", f"spec.router.args[{index}]", argument, remedy)


def variables(given: Any, field: str) -> Iterator[Problem]:
    """Yield the refused variables of a list.

    Parameters
    ----------
    given : list
        Of EnvVars; what is none is passed over.
    field : str
        Path of the list in the custom resource.
    """
    for index, name, _ in names.named(given):
        remedy = _REMEDIES.get("--" + name.removeprefix(_VARIABLES).lower().replace("_", "-"))
        if name == contract.ENV_ADMIN_TOKEN:
            remedy = "remove it: the token is that of the Secret that the operator made"
        elif not name.startswith(_VARIABLES):
            continue
        if remedy is not None:
            yield Problem("InvalidVariable", f"{field}[{index}]", name, remedy)
