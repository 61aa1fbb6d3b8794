"""The Job of an EldrFit. Pure."""

from __future__ import annotations

from typing import Any

from eldr import admin_tls, contract
from eldr_operator import clock, meta
from eldr_operator.models import EldrDeployment, EldrFit
from eldr_operator.validation.spec import problems
from eldr_operator.validation.templates import FITS
from eldr_operator.workloads import pods, router

Object = dict[str, Any]

_BACKOFF_LIMIT = 1
_AUTHORITY, _FOLDER = "admin-authority", "/etc/eldr/admin-authority"


def fit_job(cr: EldrDeployment, fit: EldrFit, image: str) -> Object:
    """Return the Job that runs a fit and leaves a report."""
    job_labels = meta.labels(cr.name, meta.FIT) | {contract.LABEL_FIT: fit.name}
    # a patch that cannot be used is told by ConfigValid, and left out here
    invalid = any(problem.field.startswith(FITS) for problem in problems(cr))
    spec = {
        "enableServiceLinks": False,
        "serviceAccountName": meta.child_name(cr, meta.FIT),
        "restartPolicy": "Never",
        "securityContext": pods.POD_SECURITY,
        "containers": [_container(cr, fit, image)],
        "volumes": [pods.TMP_VOLUME, *({"name": _AUTHORITY, **each} for each in _authority(cr))],
    }
    owner = meta.owner_reference(contract.API_VERSION, contract.KIND_FIT, fit.name, fit.metadata.uid)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": fit.name,
            "namespace": cr.namespace,
            "labels": job_labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "backoffLimit": _BACKOFF_LIMIT,
            "activeDeadlineSeconds": cr.spec.refit.active_deadline_seconds,
            "template": pods.template(job_labels, spec, {} if invalid else cr.spec.refit.pod_template),
        },
    }


def _authority(cr: EldrDeployment) -> list[Object]:
    """Return the source of the volume with whom to trust at routers' admin ports, if anybody says."""
    return [router.authority_volume(cr.spec.router.admin_tls)] if cr.spec.router.admin_tls else []


def _least(cr: EldrDeployment, fit: EldrFit) -> int | None:
    """Return how many records must be usable; None for a fit that a person has asked for."""
    if fit.spec.trigger == "Manual":
        return None
    wanted, trigger = cr.spec.refit.min_samples, fit.spec.trigger
    # Since a change they are estimated from requests and their sample rate; else routers tell how many they hold, usable or not.
    is_approximate = trigger == "Drift" or (trigger != "Schedule" and fit.spec.since is None)
    return max(1, wanted * 4 // 5) if is_approximate else wanted


def _container(cr: EldrDeployment, fit: EldrFit, image: str) -> Object:
    lookback, since, before = fit.spec.lookback_minutes, fit.spec.since, fit.spec.before
    least = _least(cr, fit)
    return {
        "name": contract.CONTAINER_FIT,
        "image": cr.spec.router.image or image,
        "imagePullPolicy": cr.spec.router.image_pull_policy,
        "command": ["eldr"],
        "args": [
            "fit",
            "job",
            f"--namespace={cr.namespace}",
            f"--deployment={cr.name}",
            f"--fit={fit.name}",
            f"--fit-uid={fit.metadata.uid}",
            f"--k={fit.spec.k or cr.spec.decode.replicas}",
            f"--model={cr.served_model}",
            *([] if lookback is None else [f"--lookback-minutes={lookback}"]),
            *([] if since is None else [f"--since={clock.stamp(since)}"]),
            *([] if before is None else [f"--before={clock.stamp(before)}"]),
            *([] if least is None else [f"--min-samples={least}"]),
            *(f"--admin-authority={_FOLDER}/{admin_tls.AUTHORITY_KEY}" for _ in _authority(cr)),
        ],
        "env": pods.environment([{"name": "HOME", "value": "/tmp"}, pods.admin_token(cr.name)]),  # noqa: S108
        "resources": pods.resources(cr.spec.refit.resources or pods.OWN_REQUESTS),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": [
            pods.TMP_MOUNT,
            *({"name": _AUTHORITY, "mountPath": _FOLDER, "readOnly": True} for _ in _authority(cr)),
        ],
    }
