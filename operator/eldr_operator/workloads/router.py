"""The router: a native sidecar of prefill pods, or a Deployment of its own. Pure."""

from __future__ import annotations

from typing import Any

from eldr import admin_tls, contract
from eldr_operator import meta
from eldr_operator.models import AdminTlsSpec, EldrDeployment
from eldr_operator.workloads import pods

Object = dict[str, Any]

MARGIN_SECONDS = 15
"""Between the end of draining and SIGKILL."""
LOG_DIR = "/var/lib/eldr/siglog"
_TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_TOKEN_SECONDS = 600
"""The least that Kubernetes takes: a token that the API server refuses is replaced within eight minutes."""
_KEYS, _TLS, _ADMIN, _AUTHORITY = "api-keys", "tls", "admin-tls", "admin-authority"
_TOKEN = "admin-token"  # noqa: S105 - the name of a volume
_FOLDERS = {name: f"/etc/eldr/{name}" for name in (_KEYS, _TLS, _ADMIN, _AUTHORITY, _TOKEN)}
"""Where the volumes of what routers ask others for, and show them, are mounted."""
_PAIR = ("tls.crt", "tls.key")
_FORWARDED = {"name": "ELDR_ROUTER_LOOPBACK", "value": "true"}
"""Lets ``kubectl port-forward`` reach it."""


def container(cr: EldrDeployment, image: str) -> Object:
    """Return the router container."""
    spec, log = cr.spec.router, cr.spec.signatures
    scheme, secrets = "HTTPS" if spec.tls_secret else "HTTP", _secrets(cr)
    # the pod's status, and `eldr doctor`, report what is wrong with a Secret
    return {
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "name": contract.CONTAINER_ROUTER,
        "image": spec.image or image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": ["eldr"],
        "args": [
            "router",
            "--source=kubernetes",
            f"--namespace=$({contract.ENV_POD_NAMESPACE})",
            f"--deployment={cr.name}",
            f"--host=$({contract.ENV_POD_IP})",
            f"--port={contract.PORT_ROUTER}",
            f"--admin-port={contract.PORT_ADMIN}",
            f"--log-dir={LOG_DIR}",
            f"--log-mebibytes={log.retention_mebibytes}",
            f"--log-hours={log.retention_hours}",
            f"--drain-seconds={spec.drain_seconds}",
            f"--admin-token-file={_FOLDERS[_TOKEN]}/{contract.SECRET_TOKEN_KEY}",
            *_options(cr),
            *spec.args,
        ],
        # a variable, as an earlier router would refuse an argument that it does not know
        "env": pods.environment([_FORWARDED], spec.env),
        "ports": [
            {"name": "http", "containerPort": contract.PORT_ROUTER, "protocol": "TCP"},
            {
                "name": admin_tls.PORT_TLS if spec.admin_tls else admin_tls.PORT,
                "containerPort": contract.PORT_ADMIN,
                "protocol": "TCP",
            },
        ],
        "resources": pods.resources(spec.resources or pods.OWN_REQUESTS),
        "startupProbe": pods.probe(
            contract.PATH_HEALTH, contract.PORT_ROUTER, period=1, failures=60, scheme=scheme
        ),
        "livenessProbe": pods.probe(
            contract.PATH_HEALTH, contract.PORT_ROUTER, period=10, failures=3, timeout=5, scheme=scheme
        ),
        "readinessProbe": pods.probe(
            contract.PATH_READY, contract.PORT_ROUTER, period=2, failures=2, scheme=scheme
        ),
        "securityContext": pods.UNPRIVILEGED,
        "volumeMounts": [
            {"name": "api-token", "mountPath": _TOKEN_DIR, "readOnly": True},
            {"name": "siglog", "mountPath": LOG_DIR},
            {"name": "router-tmp", "mountPath": "/tmp"},  # noqa: S108 - inside the container, an emptyDir
            *({"name": name, "mountPath": _FOLDERS[name], "readOnly": True} for name in secrets),
        ],
    }


def _secrets(cr: EldrDeployment) -> dict[str, Object]:
    """Return volumes of what others are asked for and shown."""
    spec = cr.spec.router
    name = contract.admin_secret_name(cr.name)
    token = {"secretName": name, "items": _items(contract.SECRET_TOKEN_KEY)}
    secret_volumes: dict[str, Object] = {_TOKEN: {"secret": token}}
    if spec.api_keys_secret:
        secret_volumes[_KEYS] = {"secret": {"secretName": spec.api_keys_secret}}
    if spec.tls_secret:
        secret_volumes[_TLS] = {"secret": {"secretName": spec.tls_secret, "items": _items(*_PAIR)}}
    if tls := spec.admin_tls:
        secret_volumes[_ADMIN] = {"secret": {"secretName": tls.secret_name, "items": _items(*_PAIR)}}
        secret_volumes[_AUTHORITY] = authority_volume(tls)
    return secret_volumes


def authority_volume(tls: AdminTlsSpec) -> Object:
    """Return the source of a volume that holds whom to trust at admin ports."""
    return {"configMap": {"name": tls.authority_config_map, "items": _items(admin_tls.AUTHORITY_KEY)}}


def _items(*keys: str) -> list[Object]:
    """Return entries by name: they keep a pod from starting without them, with an Event that says why."""
    return [{"key": key, "path": key} for key in keys]


def _options(cr: EldrDeployment) -> list[str]:
    """Return options, not variables: an earlier router that does not know them must not start, as it would let everybody in."""
    spec = cr.spec.router
    options = [f"--api-keys={_FOLDERS[_KEYS]}"] if spec.api_keys_secret else []
    for option, is_set in ((_TLS, spec.tls_secret), (_ADMIN, spec.admin_tls)):
        if is_set:
            certificate, key = (f"{_FOLDERS[option]}/{name}" for name in _PAIR)
            options += [f"--{option}-certificate={certificate}", f"--{option}-key={key}"]
    if spec.admin_tls:
        options.append(f"--admin-authority={_FOLDERS[_AUTHORITY]}/{admin_tls.AUTHORITY_KEY}")
    return options


def volumes(cr: EldrDeployment) -> list[Object]:
    """Return the router's volumes; only its container mounts the API token and what is secret."""
    token = {"path": "token", "expirationSeconds": _TOKEN_SECONDS}
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources: list[Object] = [
        {"serviceAccountToken": token},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return [
        {"name": "api-token", "projected": {"sources": sources}},
        {"name": "siglog", "emptyDir": {}},
        {"name": "router-tmp", "emptyDir": {}},
        *({"name": name, **source} for name, source in _secrets(cr).items()),
    ]


def deployment(cr: EldrDeployment, image: str) -> Object:
    """Return the Deployment of routers, for placement Deployment."""
    selector = meta.role_selector(cr, contract.ROLE_ROUTER)
    head = meta.manifest(
        "apps/v1", "Deployment", cr, meta.child_name(cr, contract.ROLE_ROUTER), contract.ROLE_ROUTER
    )
    pod_labels = head["metadata"]["labels"] | selector | {contract.LABEL_ROUTER: "true"}
    spec = {
        "enableServiceLinks": False,
        "serviceAccountName": meta.child_name(cr, meta.ROUTER),
        "automountServiceAccountToken": False,
        "securityContext": pods.POD_SECURITY,
        "terminationGracePeriodSeconds": cr.spec.router.drain_seconds + MARGIN_SECONDS,
        "containers": [container(cr, image)],
        "volumes": volumes(cr),
    }
    return head | {
        "spec": {
            "replicas": cr.router_replicas,
            "selector": {"matchLabels": selector},
            "template": pods.template(pod_labels, spec, cr.spec.router.pod_template),
        }
    }
