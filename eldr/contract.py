"""Names and wire shapes that the planes share.

Router, operator, fit, engines and charts agree through this module and nothing else. It imports nothing but the
standard library, so that the operator, which does no maths, may import it too. JSON shapes are documented where
their keys are named; units are seconds and bytes.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

# --- Kubernetes names -------------------------------------------------------------------------------------------

GROUP: Final = "eldr.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
DEPLOYMENTS: Final = "eldrdeployments"
FITS: Final = "eldrfits"
SCALERS: Final = "eldrscalers"
KIND_DEPLOYMENT: Final = "EldrDeployment"
KIND_FIT: Final = "EldrFit"
KIND_SCALER: Final = "EldrScaler"
FIELD_MANAGER: Final = "eldr-operator"
SERVED_LEASE: Final = "eldr-served-by"
"""In each namespace with an EldrDeployment: the release whose operator serves it."""

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
"""On every pod of a deployment: the EldrDeployment's name."""
LABEL_ROLE: Final = f"{GROUP}/role"
"""On every engine or router pod: one of ROLE_PREFILL, ROLE_DECODE, ROLE_ROUTER."""
LABEL_KV: Final = f"{GROUP}/kv"
"""Key of engines that may exchange KV: a digest of what they must have in common. Engines without it are taken to be like any other."""
LABEL_REVISION: Final = f"{GROUP}/revision"
"""On every pod made from a revision: the name of the ControllerRevision that keeps its template."""
LABEL_REVISION_OF: Final = f"{GROUP}/revision-of"
"""On a ControllerRevision: the role. Not LABEL_ROLE: a StatefulSet takes revisions without an owner that carry that for its own."""
ANNOTATION_COMPLETED: Final = f"{GROUP}/completed"
"""On a ControllerRevision: when all pods of the role were ready with it last."""
ANNOTATION_REPLICAS: Final = f"{GROUP}/replicas"
"""On an EldrScaler: the replicas that the operator has set, or :data:`HANDED_BACK`."""
HANDED_BACK: Final = "spec"
"""The replicas are to follow the EldrDeployment again."""
AUTOSCALER: Final = "kube-controller-manager"
"""As whom a HorizontalPodAutoscaler sets replicas, that of KEDA included."""
ENDED_PHASES: Final = frozenset(("Failed", "Succeeded"))
"""Of pods that have ended for good, whatever the state of their containers."""
ANNOTATION_FAILED: Final = f"{GROUP}/failed"
"""On a ControllerRevision: when it was given up because it failed."""
LABEL_ROUTER: Final = f"{GROUP}/router"
"""``"true"`` on every pod that holds a router container (the prefill pods with placement Sidecar)."""
LABEL_FIT: Final = f"{GROUP}/fit"
"""On the Job, pods and ConfigMaps of a fit: the EldrFit's name."""
ANNOTATION_ATTEMPT: Final = f"{GROUP}/attempt"
"""On an EldrFit that the operator made because a set is needed: how many it has made for that, this one included."""
LABEL_STATEFULSET_INDEX: Final = "apps.kubernetes.io/pod-index"
"""Set by Kubernetes on StatefulSet pods: the ordinal, which is the slot that a centroid belongs to."""

ROLE_PREFILL: Final = "prefill"
ROLE_DECODE: Final = "decode"
ROLE_ROUTER: Final = "router"

CONTAINER_ENGINE: Final = "engine"
CONTAINER_ROUTER: Final = "router"
CONTAINER_FIT: Final = "fit"

# --- ports ------------------------------------------------------------------------------------------------------

PORT_ROUTER: Final = 8000
"""The OpenAI surface for clients, /health, /ready."""
PORT_ENGINE: Final = 8100
"""The engine's HTTP port; not 8000, because a sidecar router shares the pod's address with its engine."""
PORT_ADMIN: Final = 9100
"""Router admin: state, signature log, unions, /metrics. Outside the Service."""

# --- HTTP paths and headers -------------------------------------------------------------------------------------

PATH_HEALTH: Final = "/health"
PATH_READY: Final = "/ready"
PATH_METRICS: Final = "/metrics"
PATH_STATE: Final = "/eldr/v1/state"
"""GET, admin port, bearer token. See ``docs/reference/admin-api.md``."""
PATH_SIGLOG: Final = "/eldr/v1/siglog"
"""GET, admin port, bearer token: every retained log frame, oldest first, as ``application/octet-stream``."""
PATH_UNIONS: Final = "/eldr/v1/unions"
"""GET ``?of=id&since=n``, admin port, bearer token: a router's table of the experts of its own sequences in flight,
``{"v": 1, "of": id, "version": n, "shape": [layers, experts, top_k, [layer, ...]] | null, "rows": {decode name:
{"sequences": n, "logs": b64}}}``, of the rows that changed since ``since``, if ``of`` is still the id of its tables, else of all. ``logs``
is base64 of little-endian float16: per cell the sum of ln(1 - p) over the sequences. See ``docs/reference/admin-api.md``."""
PATH_EXPLAIN: Final = "/eldr/v1/explain"
"""POST, admin port, bearer token: a dry run of a placement. See ``docs/reference/admin-api.md``."""
PATH_ACTIVATIONS: Final = "/eldr/v1/activations"
"""GET, engine: decode-time activations of finished requests.

Query ``after`` (cursor, default 0; a number, or one for each rank with requests of its own, with dots between them), ``prefix`` (only
request ids that start so), ``limit`` (1..256, default 64), ``boot`` (the boot id the cursor belongs to; with another one, as with a
cursor beyond the last record, reading starts at the oldest), ``rate`` (only requests sampled at this rate, see :func:`is_sampled`; default 1).
Answer ``{"v": 1, "boot": str, "next": cursor, "lost": n, "records": [{"request_id": str, **counts}]}`` with the
counts object described at :data:`ELDR_KEY`; an engine that computes its prompts itself adds the prompt's as ``prompt``. Reading deletes
nothing: the engine keeps a bounded number of records, ``lost`` counts those overwritten between ``after`` and the oldest one kept."""

PATH_LOAD: Final = "/eldr/v1/load"
"""GET, engine: ``{"v": 1, "in_flight": n, "limit": n}``: sequences in flight, and how many there may be."""

METRIC_IN_FLIGHT: Final = "eldr_engine_in_flight"
"""Gauge on engines: sequences of requests that the API servers have admitted and not yet answered in full."""
METRIC_REFUSED: Final = "eldr_engine_refused"
"""Counter on engines: requests refused because the engine was full; prefill engines refuse none."""
METRIC_INFO: Final = "eldr_engine_info"
"""Gauge on engines, always 1: its labels are the engine's version, ``vllm``, and ``tested``: whether this plug-in was tested with it,
INFO_TESTED or INFO_UNTESTED."""
INFO_TESTED: Final = "true"
INFO_UNTESTED: Final = "false"
METRIC_COUNTING: Final = "eldr_engine_counting"
"""Gauge on engines: 1, and 0 from when counting has failed; the engine serves on, and logs the reason."""
METRIC_ACTIVE_EXPERTS: Final = "eldr_engine_active_experts"
"""Histogram per decode step on engines: distinct experts used, mean over the layers."""
METRIC_BATCH_SIZE: Final = "eldr_engine_batch_size"
BATCH_BUCKETS: Final = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 48, 56, 64),
    *(80, 96, 128, 192, 256, 512),
)
"""Upper bounds of its histogram: fine enough to estimate how many experts random batches of these sizes would use."""
METRIC_FED_TOKENS: Final = "eldr_engine_fed_tokens"
"""Counter on decode engines: tokens that steps fed, one of each request and its drafts; without it, as many as requests."""
METRIC_DRAFT_EXPERTS: Final = "eldr_engine_draft_experts"
"""Counter on engines: experts that layers which draft (MTP heads, a draft model) loaded, pass by pass, over the number of the model's
own layers: a step reads as many as METRIC_ACTIVE_EXPERTS and this together."""
METRIC_CONTEXT_TOKENS: Final = "eldr_engine_context_tokens"
"""Counter on decode engines: tokens of KV that the requests of steps held, summed over the steps; without it, not reported."""
METRIC_STEP_SECONDS: Final = "eldr_engine_step_seconds"
METRIC_LAYER_ACTIVE_EXPERTS: Final = "eldr_engine_layer_active_experts"
"""Counter per layer on engines: distinct experts used, summed over the steps."""
METRIC_RECORDS: Final = "eldr_engine_records"
"""Counter on engines: requests by ``result``: exact, inexact, or unavailable counts."""
METRIC_LATE_PULLS: Final = "eldr_engine_late_pulls"
"""Counter on decode engines: requests whose deadline passed before their KV was there, by ``outcome``."""
LATE_PREFILLED: Final = "prefilled"
"""Outcome: nothing was pulled, the prompt was prefilled here."""
LATE_DISCARDED: Final = "discarded"
"""Outcome: the pull had begun in time; what it brought was not used, and the request failed."""
METRIC_CUT_PROMPTS: Final = "eldr_engine_cut_prompts"
"""Counter on decode engines: prompts prefilled there because vLLM would have pulled a sliding window one block short."""

METRIC_FULLEST_RANK: Final = "eldr_engine_fullest_rank_experts"
"""Histogram per decode step on expert-parallel engines that balance activations: experts of the rank that has most of them, mean
over the layers, by ``choice``: CHOICE_BALANCED or CHOICE_VLLM."""
METRIC_RANKS: Final = "eldr_engine_ranks_experts"
"""The same of all ranks together."""
CHOICE_BALANCED: Final = "balanced"
"""What the step really used."""
CHOICE_VLLM: Final = "vllm"
"""What vLLM's own choice of replicas would have used."""

HEADER_REQUEST_ID: Final = "x-request-id"
HEADER_LOG: Final = "x-eldr-log"
"""Request header: ``off`` keeps this request out of the signature log, whatever the sample rate."""
HEADER_DOMAIN: Final = "x-eldr-domain"
"""Request header: the domain that the request belongs to, for the policy Domain. Not forwarded to engines."""
HEADER_SESSION: Final = "x-session-id"
"""Request header: requests of the same value go to the same prefill engine while it has room; the name that vLLM's own
router reads first. Forwarded to engines."""
HEADER_LIMIT: Final = "x-eldr-limit"
"""Request header, router to engine: the request is refused where so many sequences are in flight, if that is less than the engine's own limit."""
HEADER_LOAD: Final = "x-eldr-load"
"""Response header: ``count/limit``, sequences in flight over all of the engine's API servers. Only of engines that keep
:data:`PULL_BEFORE_KEY`: routers trust their unstreamed answers at any time."""
HEADER_FULL: Final = "x-eldr-full"
"""Response header of a 429 with which an engine refuses a request above its limit, ``count/limit``: nothing was read or computed."""
HEADER_ADMIN_TOKEN: Final = "x-eldr-admin-token"  # noqa: S105 - the name of the header
"""Request header of the admin port: the token alone, for who comes through the API server's proxy, which keeps ``authorization``
for itself."""
HEADER_DECODE: Final = "x-eldr-decode"
"""Response header of the router: name of the decode engine that served the request."""

# --- the engine protocol ----------------------------------------------------------------------------------------

CONNECTOR: Final = "EldrConnector"
"""Name of the plug-in's connector in ``--kv-transfer-config``."""
KV_KEY: Final = "kv_transfer_params"
ELDR_KEY: Final = "eldr"
"""Key under ``kv_transfer_params`` of a prefill response that holds the request's expert counts:

``{"v": 1, "layers": L, "experts": E, "topk": k, "tokens": n, "exact": bool, "dtype": "uint16", "counts": b64}``

``counts`` is base64 of L x E little-endian values, layer by layer: how many of the prompt's tokens the gate sent to
each expert. ``exact`` means that every layer sums to ``tokens * topk``. Routers strip the key before they forward
``kv_transfer_params`` to a decode engine. An engine that cannot see its routing answers ``{"v": 1, "unavailable": reason}``."""
COUNTS_VERSION: Final = 1
PULL_BEFORE_KEY: Final = "eldr_pull_before"
"""Key under ``kv_transfer_params`` of a decode request: Unix time, seconds, after which its KV blocks must not be pulled.

The router sets it by its own wall clock (hosts are expected to be synchronised) to when the lease ends, less a margin for
what clocks differ by. A decode engine with the plug-in prefills the prompt itself where a pull would begin later, and fails
the request, as any failed pull does, where a pull that began in time has not ended by then. A value that is no time
is logged and counts as absent. Engines without the plug-in ignore the key."""

DEFAULT_LEASE_SECONDS: Final = 300.0
"""How long a prefill engine holds the KV blocks of an answered request for its decode engine."""

# --- request ids and sampling -----------------------------------------------------------------------------------

_REQUEST_ID = re.compile(r"(?:^|-)(eldr-[0-9a-f]{8}-[0-9a-f]+)-\d+")


def request_base(router: str, sequence: int) -> str:
    """Return the part of a router's upstream request ids that all attempts of one request share.

    Parameters
    ----------
    router : str
        Eight lower-case hex digits, unique per router process.
    sequence : int
        The router's request counter.
    """
    return f"eldr-{router}-{sequence:x}"


def attempt_id(base: str, attempt: int) -> str:
    """Return the id that a router sends upstream: unique per attempt.

    Parameters
    ----------
    base : str
        From :func:`request_base`.
    attempt : int
        Counts upstream dispatches of one request, prefill and decode alike.
    """
    return f"{base}-{attempt}"


def base_id(upstream_id: str) -> str:
    """Return the part of an upstream request id that all attempts of one request share.

    Engines decorate ids (``cmpl-ID``, ``chatcmpl-ID-0-1a2b3c4d``); an id that no router made is returned unchanged.
    """
    match = _REQUEST_ID.search(upstream_id)
    return match.group(1) if match else upstream_id


def is_sampled(upstream_id: str, rate: float) -> bool:
    """Return whether a request is sampled for telemetry.

    A pure function of the base id, so that router and engine agree without talking.

    Parameters
    ----------
    upstream_id : str
        The id as sent upstream, or decorated by the engine.
    rate : float
        Share of requests to sample, 0..1.
    """
    return zlib.crc32(base_id(upstream_id).encode()) < rate * 2**32


# --- the routing ConfigMap --------------------------------------------------------------------------------------

ROUTING_KEY: Final = "routing.json"
ROUTING_VERSION: Final = 1
"""The ConfigMap ``<deployment>-routing`` holds one JSON object under :data:`ROUTING_KEY`; only the operator writes it.
Settings stand here, not in pod templates, so that changing them never restarts an engine.

``{"version": 1,
   "model": str,                          the served model's name
   "epoch": n,                            grows by one with every change of ``active``
   "policy": one of POLICIES,
   "tau": float, "min_candidates": n,     the band
   "max_load": float | null,              engines are candidates up to so many times the mean load; null: no bound
   "domains": [{"name": str, "share": n}],  who shares the slots with policy Domain, see ``HEADER_DOMAIN``; absent: none
   "max_in_flight": n,                    per decode engine, over all routers; beyond it 429
   "min_prefill_tokens": n,               prompts that are expected to have fewer tokens go unsplit to a decode engine; absent: 0
   "max_waiting": n, "max_wait_seconds": float,  how many requests may wait for room at each router, and for how long;
                                          absent: the router's own options
   "sample_rate": float,                  share of requests that are logged
   "lease_seconds": float,                of the prefill engines' KV blocks
   "slots": K,                            decode replicas wanted
   "active": SET | null, "staged": SET | null}``

SET is ``{"fit": EldrFit name, "digest": "sha256:...", "k": n, "shards": [{"name": ConfigMap, "sha256": hex}]}``.
A router loads ``staged`` beside ``active`` and reports both in its state; it switches when ``active`` moves."""

POLICY_ELDR: Final = "ELDR"
POLICY_MARGINAL: Final = "MarginalUnion"
POLICY_DOMAIN: Final = "Domain"
POLICY_DEFAULT: Final = POLICY_MARGINAL
"""Chosen by docs/evidence/default.md: of the policies whose P99 is nowhere above the balancer's by more than noise, the fastest."""
POLICIES: Final = (POLICY_ELDR, POLICY_MARGINAL, "JSQ", POLICY_DOMAIN, "RoundRobin", "PowerOfTwo", "Random")

SHARD_KEY: Final = "shard"
"""Key under ``binaryData`` of a centroid shard ConfigMap. The shards, in order, joined, are one centroid file."""
SHARD_BYTES: Final = 768 * 1024
REPORT_KEY: Final = "report.json"
"""Key of the ConfigMap ``<fit>-report``, the last object that a fit Job writes: the result of the run.

``{"version": 1, "verdict": "Accepted" | "Rejected" | "Regresses" | "Failed", "reason": CamelCase, "message": str,
   "set": SET | null, "samples": n, "layers_kept": [l, ...], "layers": L, "experts": E, "rho": float | null,
   "weighting": "counts" | "counts_idf",
   "imbalance": float,                    largest cluster over the mean
   "cluster_sizes": [n, ...],
   "reduction": float | null,             predicted share of active experts saved against JSQ, held-out records
   "reduction_interval": [low, high] | null,         its 90 % interval, over arrivals and records; as of all the following
   "baseline_reduction": float | null,    the same for the set that was active, with
   "active_reduction_interval": [low, high] | null,
   "gain": float | null,                  what the new set saves more than the active one, with
   "gain_interval": [low, high] | null,
   "active_harms": bool | null,           whether the interval of the active set's saving lies wholly below minus HARM_MARGIN
   "active_digest": str | null,           which set that was
   "baseline": BASELINE | null,           null without held-out records with a signature
   "seconds": float}``

BASELINE is what live traffic is compared with while the set is active, of the held-out records that have a signature:

``{"similarity": [n, ...],               how many, by their best cosine in SIMILARITY_BINS bins over [0, 1],
   "clusters": [n, ...],                  and by the most similar slot; k of them
   "requests": n,                         how many altogether
   "saving": float | null,                predicted share of active experts that steps save against random batches of the same
   "saving_low": float | null, "saving_high": float | null,       sizes, with the band; its interval,
   "batch": float | null,                                         and the sequences in a step that it assumes
   "before": {"similarity": [n, ...], "clusters": [n, ...], "requests": n} | null}``
                                          the same counts of older records than the fit was for: traffic that may return

A run that made no set has neither intervals nor a baseline.

What a run that made a set adds (null where placement could not be predicted):

``{"layers_basis": "correlation" | "uninformative" | "no_decode",   what the kept layers rest on; all are kept but for the first
   "skipped": {reason: n},                records left out
   "placement_imbalance": float | null,   predicted load of the fullest engine over the mean, held-out records
   "tau": float | null,                   the band that was assumed
   "single_candidate": float | null,      share of decisions with one candidate in it
   "suggested_tau": float | null}``       the band with which that share would be one half"""
REPORT_VERSION: Final = 1
BETTER_MARGIN: Final = 0.005
"""A set replaces the active one if it saves more by at least this share of active experts, beyond doubt.

Half a point: refits of the same traffic differ by that much in either direction, steps become about as much less than a percent
faster by it, and every change of centroids moves requests to other engines."""
HARM_MARGIN: Final = 0.005
"""A set harms if it costs at least this share of active experts against JSQ, beyond doubt: below, nothing is won without it."""

STATE_VERSION: Final = 1
"""The router's ``/eldr/v1/state``:

``{"v": 1, "router": id, "epoch": n, "policy": str,            the policy in effect (JSQ while no set is loaded)
   "ready": bool, "draining": bool,
   "active": {"fit", "digest"} | null, "staged": {"fit", "digest"} | null,
   "refused": [{"fit", "digest", "reason"}],                    sets this router cannot load, and why
   "samples": n,                                                log records retained
   "locality": {"layers", "requests", "tables", "active_experts"} | null,   with MarginalUnion, see the admin API
   "traffic": {"epoch": n, "digest": str,                       all requests with a signature since this epoch became active:
               "requests": n, "similarity": [n, ...],           how many, by their best cosine in SIMILARITY_BINS bins over [0, 1],
               "clusters": [n, ...], "outside_band": n,         by the most similar slot, and placed outside the band;
               "logged": n,                                     records written to the signature log since then;
               "busiest_in_flight": n,                          in flight on the busiest engine, and on the mean one, when a
               "mean_in_flight": float} | null,                 request was placed, summed over the requests
   "saving": {"share": float, "error": float, "steps": n,       active experts that placement saves against random batches of the
              "batch": float, "drafts": float} | null,          same sizes, lately; standard error, steps, mean sequences in a step;
                                                                where engines draft, share of experts that it adds to random batches
   "step_time": {"fixed", "per_expert", "per_request", "per_token", "windows", "noise", "expert_share", "expert_share_error", "engines"} | null,
   "prefill": [{"name", "url", "healthy", "in_flight"}],
   "decode": [{"name", "url", "slot", "healthy",                own sequences in flight and all, and up to how many it is sent more;
               "in_flight", "total", "bound", "reports",        whether it reports its load; its version, where it reports that its
               "untested", "counting",                          plug-in was not tested with it; whether it counts, if reported;
               "kv_tokens", "kv_held"}],                        KV that it can hold, if reported, and is expected to hold
   "counters": {...}}``                                          totals since start, names in the metrics reference"""

SIMILARITY_BINS: Final = 100
"""Bins of equal width over [0, 1] for a request's best cosine, in a router's ``traffic`` and in a fit's baseline; 1 is in the last."""

SIGNATURE_QUALITIES: Final = ("exact", "inexact", "no_signature", "wire_error")
"""What prefill answers reported of their experts: counts that sum up, counts that do not, none, unreadable ones."""


def signature_counter(quality: str) -> str:
    """Return the name among a router's ``counters`` of the prefill answers of one of :data:`SIGNATURE_QUALITIES`."""
    return f'eldr_router_signatures_total{{quality="{quality}"}}'


# --- environment of our own containers --------------------------------------------------------------------------

ENV_ADMIN_TOKEN: Final = "ELDR_ADMIN_TOKEN"  # noqa: S105 - the name of the variable
"""Bearer token of the admin port, from the Secret ``<deployment>-admin`` under ``token``."""
SECRET_TOKEN_KEY: Final = "token"  # noqa: S105 - the key in the Secret
ENV_BALANCE: Final = "ELDR_BALANCE"
"""On decode engines: who chooses among an expert's replicas, BALANCE_TOKENS (default) or BALANCE_ACTIVATIONS."""
BALANCE_TOKENS: Final = "Tokens"
BALANCE_ACTIVATIONS: Final = "Activations"
SPECULATION: Final = ("ngram", "draft_model", "eagle3", "mtp")
"""Methods of speculative decoding with which counting was shown to be exact."""
SPECULATION_WITHOUT_KV: Final = ("ngram", "ngram_gpu", "suffix")
"""Methods whose drafts need no KV cache, so that prefill and decode engines may differ."""
ENV_POD_IP: Final = "POD_IP"
ENV_POD_NAME: Final = "POD_NAME"
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"

REFUSAL: Final = "ELDR refuses: "
"""First words of an engine's termination message where our plug-in ended it; the reason and the remedy follow."""


def routing_name(deployment: str) -> str:
    """Return the name of a deployment's routing ConfigMap."""
    return f"{deployment}-routing"


def admin_secret_name(deployment: str) -> str:
    """Return the name of the Secret that guards a deployment's admin ports."""
    return f"{deployment}-admin"


def report_name(fit: str) -> str:
    """Return the name of the ConfigMap that a fit Job writes last."""
    return f"{fit}-report"


def shard_name(fit: str, digest: str, index: int) -> str:
    """Return the name of one centroid shard of a fit.

    The set's digest is part of it: a second attempt of a Job writes other objects, never half of another set.
    """
    return f"{fit}-{digest.removeprefix('sha256:')[:8]}-{index}"
