"""One EldrFit inside a cluster."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eldr import admin_tls, centroids, contract
from eldr.fit import report as reports
from eldr.fit.baseline import Baseline
from eldr.fit.before import Older
from eldr.fit.cluster import Cluster
from eldr.fit.pipeline import FitResult, FitSettings, Progress, fit
from eldr.fit.samples import FitError, make_samples, reservoir, too_few
from eldr.fit.sources import Counted, Trust, from_routers
from eldr.fit.verdict import judge

MAX_SAMPLES = 4000
CLOCKS_DIFFER = 300.0
"""Seconds by which the clock of a router's node may be ahead of the fit's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Parameters of a run.

    Attributes
    ----------
    lookback : float or None
        How old records may be, seconds.
    since : float or None
        Unix time; older records are left out as well.
    before : float or None
        Unix time; records from before it show which traffic may return.
    min_samples : int or None
        Usable records below which no set is made.
    token : str
        For the routers' admin ports.
    admin_authority : Path or None
        Certificates of whom to trust there; without it everybody.
    """

    namespace: str
    deployment: str
    fit: str
    fit_uid: str
    k: int
    model: str
    lookback: float | None
    since: float | None
    before: float | None
    min_samples: int | None
    seed: int
    token: str
    admin_authority: Path | None = None


def run(job: Job, progress: Progress) -> dict[str, Any]:
    """Fit, write the shards, and last the report.

    The report makes the run count.

    Returns
    -------
    dict
        The report (:data:`eldr.contract.REPORT_KEY`); its verdict is Failed where no set could be made.
    """
    began = time.perf_counter()
    cluster = Cluster(
        job.namespace,
        labels={contract.LABEL_DEPLOYMENT: job.deployment, contract.LABEL_FIT: job.fit},
        owner={
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND_FIT,
            "name": job.fit,
            "uid": job.fit_uid,
            "controller": True,
        },
    )
    if done := cluster.config_map(contract.report_name(job.fit)):
        progress("an earlier attempt has reported already")
        earlier: dict[str, Any] = json.loads(done["data"][contract.REPORT_KEY])
        return earlier
    try:
        result, before, active = _fit(job, cluster, progress)
    except FitError as error:
        report = reports.failed(error.reason, str(error), time.perf_counter() - began)
    else:
        pointer = _write_shards(job, cluster, result)
        report = reports.as_json(result, judge(result), time.perf_counter() - began, before, active)
        report["set"] = pointer
    cluster.create(
        contract.report_name(job.fit), data={contract.REPORT_KEY: json.dumps(report, sort_keys=True)}
    )
    return report


def _fit(job: Job, cluster: Cluster, progress: Progress) -> tuple[FitResult, Baseline | None, str | None]:
    """Return the fit, the baseline of earlier traffic, and the digest of the set that it was compared with."""
    routing = _routing(job, cluster)
    urls = cluster.router_urls(job.deployment)
    if not urls:
        raise FitError("NoRouters", "no running router; wait until the deployment is available")
    progress(f"reading the logs of {len(urls)} router{'s' * (len(urls) != 1)}")
    now = time.time()
    since = max(job.since or 0.0, 0.0 if job.lookback is None else now - job.lookback)
    unread: dict[str, str] = {}
    read = Counted(from_routers(urls, job.token, unread, _trust(job)))
    rng = np.random.default_rng(job.seed)
    active = _active_set(routing, cluster, progress)
    older = Older(
        read,
        until=None if active is None else job.before,
        near=0.0 if active is None else active.created,
        model=job.model,
    )
    records, skipped = reservoir(
        older, MAX_SAMPLES, rng, model=job.model, since=since, until=now + CLOCKS_DIFFER
    )
    for url, reason in unread.items():
        progress(f"left out {url}: {reason}")
    samples = make_samples(records, skipped)
    # of those that were not kept, as many are usable as of those that were
    usable = (read.seen - skipped.total()) * len(samples) // len(records)
    if job.min_samples is not None and usable < job.min_samples:
        raise too_few(usable, job.min_samples, samples.skipped)
    settings = FitSettings(
        k=job.k,
        model=job.model,
        seed=job.seed,
        tau=float(routing.get("tau", 0.1)),
        min_candidates=int(routing.get("min_candidates", 1)),
    )
    result = fit(samples, settings, now=now, active=active, progress=progress)
    compared = None if active is None else str(routing["active"].get("digest", ""))
    return result, older.baseline(result.centroids), compared or None


def _trust(job: Job) -> Trust:
    """Return whom to trust at admin ports by https."""
    name, path = admin_tls.server_name(job.deployment, job.namespace), job.admin_authority
    if path is None:
        return Trust(admin_tls.unverified(), name)
    try:
        return Trust(admin_tls.verifying(path.read_text()), name)
    except (OSError, ValueError) as error:
        raise FitError("RoutersUnreachable", f"--admin-authority {path}: {error}") from None


def _routing(job: Job, cluster: Cluster) -> dict[str, Any]:
    config_map = cluster.config_map(contract.routing_name(job.deployment))
    routing = json.loads(config_map["data"][contract.ROUTING_KEY]) if config_map else {}
    assert isinstance(routing, dict)  # noqa: S101 - only the operator writes it
    return routing


def _active_set(
    routing: dict[str, Any], cluster: Cluster, progress: Progress
) -> centroids.CentroidSet | None:
    pointer = routing.get("active")
    if not pointer:
        return None
    try:
        shards = []
        for shard in pointer["shards"]:
            config_map = cluster.config_map(shard["name"])
            if config_map is None:
                raise centroids.CentroidsError(f"shard {shard['name']} is missing")  # noqa: TRY301
            shards.append(base64.b64decode(config_map["binaryData"][contract.SHARD_KEY]))
        return centroids.load(centroids.join(shards, [shard["sha256"] for shard in pointer["shards"]]))
    except (centroids.CentroidsError, KeyError, ValueError) as error:
        # A damaged active set must not stop the fit that would replace it.
        progress(f"the active set {pointer.get('fit')} cannot be read and is not compared: {error}")
        return None


def _write_shards(job: Job, cluster: Cluster, result: FitResult) -> dict[str, Any]:
    data = centroids.dump(result.centroids)
    digest = centroids.digest(data)
    shards = []
    for index, shard in enumerate(centroids.split(data)):
        name = contract.shard_name(job.fit, digest, index)
        cluster.create(name, binary={contract.SHARD_KEY: shard})
        shards.append({"name": name, "sha256": hashlib.sha256(shard).hexdigest()})
    return {"fit": job.fit, "digest": digest, "k": result.centroids.k, "shards": shards}
