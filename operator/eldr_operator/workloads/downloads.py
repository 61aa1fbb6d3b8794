"""The Job that downloads a model into the claim of ``spec.model.cache``, and what is known of it. Pure.

Engines wait for it: no accelerator is held while gigabytes come, and pods that start at once do not all download the same. Its
container starts again until it succeeds, with the kubelet's growing pauses. So a Secret that was corrected is read at the next try,
and nothing of ours counts attempts.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from eldr import contract
from eldr_operator import meta
from eldr_operator.conditions import MODEL_READY, Condition, condition_of
from eldr_operator.kube.owners import owner_uids
from eldr_operator.kube.snapshot import Snapshot
from eldr_operator.models import EldrDeployment
from eldr_operator.workloads import fetch, pods, trouble, weights
from eldr_operator.workloads.images import Images

Object = dict[str, Any]

ANNOTATION_TEMPLATE: Final = f"{contract.GROUP}/template"
CONTAINER: Final = "download"
_ALWAYS: Final = (1 << 31) - 1
"""``backoffLimit`` of a Job whose container starts again for ever."""
_FROM_ENGINES: Final = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_HUB: Final = "HF_"
"""Variables of ``engine.env`` with this beginning, or one of these names in either case, decide how the hub is reached."""
_POD_FIELDS: Final = (
    *("affinity", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "nodeSelector"),
    *("priorityClassName", "schedulerName", "securityContext", "tolerations"),
)
"""Of ``prefill.podTemplate``: where engines may run, and how they pull their image."""
_JOB_NAME: Final = "batch.kubernetes.io/job-name"
REMEDIES: Final = {
    "NotFound": "correct spec.model.revision, or create another EldrDeployment with the right model.uri",
    "Unauthorized": (
        "check that the model exists under this name; if it is gated or private, accept its terms on its page and name a Secret "
        "with a token in spec.model.tokenSecret"
    ),
    "NoSpace": "enlarge the claim of spec.model.cache, or remove old models from it",
    "NotWritable": "let the user of the engine's image write to the claim of spec.model.cache, as by podTemplate's securityContext",
    "Unreachable": (
        "let pods reach the hub, or set HF_ENDPOINT or HTTPS_PROXY in spec.engine.env; where the claim is complete, spec.model.download "
        "Never starts engines without it"
    ),
    "DownloadFailed": "see the Job's log",
}
"""By reason: what to do. The first ones are last words of the container (:mod:`eldr_operator.workloads.fetch`)."""
_FOLLOWS: Final = "engines with this model start after that; those that run go on"


def is_wanted(cr: EldrDeployment) -> bool:
    """Tell whether a Job downloads the model: there is a claim for it, and it is one of the hub."""
    model = cr.spec.model
    is_of_hub = model.source is None and "://" not in model.uri and not model.uri.startswith(("/", "."))
    return (
        cr.spec.engine.type == "vLLM" and model.cache is not None and model.download == "Auto" and is_of_hub
    )


def name(cr: EldrDeployment) -> str:
    """Return the name of the Job. Another model, revision, token, claim or way to the hub makes another one."""
    asked = cr.spec.model.model_dump(mode="json", include={"uri", "revision", "token_secret", "cache"})
    return meta.child_name(cr, f"{meta.MODEL}-{meta.digest([asked, _of_engines(cr)])[:10]}")


def job(cr: EldrDeployment, images: Images) -> Object | None:
    """Return the Job; None where none is wanted."""
    if not is_wanted(cr):
        return None
    head = meta.manifest("batch/v1", "Job", cr, name(cr), meta.MODEL)
    asked = cr.spec.prefill.pod_template.get("spec") or {}
    patch = {"spec": {field: asked[field] for field in _POD_FIELDS if field in asked}}
    template = pods.template(head["metadata"]["labels"], _pod(cr, images), patch)
    head["metadata"]["annotations"] = {ANNOTATION_TEMPLATE: meta.digest(template)}
    return head | {"spec": {"backoffLimit": _ALWAYS, "template": template}}


def surplus(cr: EldrDeployment, wanted: Object | None, live: Snapshot) -> list[Object]:
    """Return the Jobs to delete: those of another model, and an unfinished one that other pods would do better now."""
    return [each for each in _jobs(cr, live) if wanted is None or not _serves(each, wanted)]


def is_missing(cr: EldrDeployment, wanted: Object | None, live: Snapshot) -> bool:
    """Tell whether the Job is to be created."""
    return wanted is not None and all(each["metadata"]["name"] != name(cr) for each in _jobs(cr, live))


def state(cr: EldrDeployment, live: Snapshot, refusal: str = "") -> Condition | None:
    """Return how far the download is; None where nothing is downloaded.

    Parameters
    ----------
    refusal : str
        Why the Job's pod cannot be created.
    """
    if cr.spec.model.cache is None or not is_wanted(cr):
        return None
    its, claim = name(cr), cr.spec.model.cache.claim_name
    model = f"{cr.spec.model.uri} at {cr.spec.model.revision or 'its main revision'}"
    made = live.owned("Job", its, cr.metadata.uid)
    if condition_of(made, "Complete").get("status") == "True":
        return Condition(MODEL_READY, "True", "Downloaded", f"{model} lies in claim {claim}")
    if (failed := condition_of(made, "Failed")).get("status") == "True":
        text = f"{failed.get('message', '')}; delete the Job to try again"
        return Condition(MODEL_READY, "False", "DownloadFailed", f"Job {its}: {text}")
    if refusal:
        return Condition(MODEL_READY, "False", "PodsRefused", f"Job {its}: {refusal}")
    mine = [pod for pod in live.pods if (pod["metadata"].get("labels") or {}).get(_JOB_NAME) == its]
    if cause := next(filter(None, map(_trouble, mine)), None):
        return cause._replace(message=f"Job {its}: {cause.message}")
    return Condition(
        MODEL_READY, "False", "Downloading", f"Job {its} downloads {model} into claim {claim}; {_FOLLOWS}"
    )


def _jobs(cr: EldrDeployment, live: Snapshot) -> list[Object]:
    return [
        each
        for each in live.of_kind("Job").values()
        if each["metadata"]["labels"].get(contract.LABEL_COMPONENT) == meta.MODEL
        and cr.metadata.uid in owner_uids(each)
    ]


def _serves(made: Object, wanted: Object) -> bool:
    templates = [
        (each["metadata"].get("annotations") or {}).get(ANNOTATION_TEMPLATE) for each in (made, wanted)
    ]
    is_same = made["metadata"]["name"] == wanted["metadata"]["name"]
    return is_same and (
        condition_of(made, "Complete").get("status") == "True" or templates[0] == templates[1]
    )


def _trouble(pod: Mapping[str, Any]) -> Condition | None:
    """Return why a pod does not download, by its container's last words or by what Kubernetes says."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        for key in ("state", "lastState"):
            ended = (container.get(key) or {}).get("terminated") or {}
            if ended.get("exitCode"):
                reason, _, text = str(ended.get("message") or "").partition(": ")
                if reason not in REMEDIES:
                    reason, text = (
                        "DownloadFailed",
                        f"container {container['name']} ended with {ended['exitCode']}",
                    )
                again = "It is tried again, with growing pauses"
                return Condition(MODEL_READY, "False", reason, f"{text}; {REMEDIES[reason]}. {again}")
    return trouble.of_pod(MODEL_READY, pod)


def _of_engines(cr: EldrDeployment) -> list[Object]:
    """Return the variables of all engines by which the hub is reached."""
    return [
        each
        for each in cr.spec.engine.env
        if each["name"].startswith(_HUB) or each["name"].upper() in _FROM_ENGINES
    ]


def _pod(cr: EldrDeployment, images: Images) -> Object:
    volumes = [volume for volume in weights.volumes(cr.spec.model) if volume["name"] == weights.CACHE_VOLUME]
    return {
        "enableServiceLinks": False,
        "serviceAccountName": meta.child_name(cr, meta.ENGINE),
        "automountServiceAccountToken": False,
        "restartPolicy": "OnFailure",
        "securityContext": {"seccompProfile": pods.POD_SECURITY["seccompProfile"]},
        "containers": [_container(cr, images)],
        "volumes": [pods.TMP_VOLUME, *volumes],
    }


def _container(cr: EldrDeployment, images: Images) -> Object:
    model = cr.spec.model
    own = {"HOME": "/tmp", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # noqa: S108 - inside the container
    # Engines may be kept off the hub: then this Job is what goes there.
    forced = {"HF_HOME": weights.hub_home(), "HF_HUB_OFFLINE": "0"}
    return {
        "name": CONTAINER,
        "image": cr.spec.engine.image or images.vllm,
        "imagePullPolicy": cr.spec.engine.image_pull_policy,
        "command": ["python3"],
        "args": ["-c", inspect.getsource(fetch), model.uri, model.revision or ""],
        "env": pods.environment(_variables(own), _of_engines(cr), weights.token(model), _variables(forced)),
        "resources": pods.resources(pods.OWN_REQUESTS),
        "securityContext": pods.CONTAINER_SECURITY,
        "volumeMounts": [pods.TMP_MOUNT, {"name": weights.CACHE_VOLUME, "mountPath": weights.CACHE_DIR}],
    }


def _variables(values: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "value": value} for name, value in values.items()]
