"""A night on which traffic drifted twice, as the API server would tell of it."""

from datetime import UTC, datetime, timedelta

NOW = datetime(2026, 11, 22, 7, 10, 30, tzinfo=UTC)
_EVENING = datetime(2026, 11, 21, 20, tzinfo=UTC)
_FIRST, _SECOND = (0.62, 1.4, 3.1, 2.9, 0.97), (1.12, 1.6, 1.7, 0.7)


def scores():
    """Return the day: quiet, a jump at 22:00, quiet, at 04:30 another one, quiet; no requests from 01:00 to 02:00."""
    found = {
        _EVENING + timedelta(minutes=30 * n): 0.11 + 0.07 * (n % 4)
        for n in range(-15, 23)
        if n not in (10, 11)
    }
    for begin, values in ((4, _FIRST), (17, _SECOND)):
        for n, value in enumerate(values):
            found[_EVENING + timedelta(minutes=30 * (begin + n))] = value
    first = min(found)
    number = (max(found) - first) // timedelta(minutes=30) + 1
    told = (found.get(first + n * timedelta(minutes=30)) for n in range(number))
    words = ("-" if score is None else f"{score:.2f}" for score in told)
    return {"since": f"{first:%Y-%m-%dT%H:%M:%SZ}", "scores": " ".join(words)}


def condition(kind, status, reason, message, since):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def deployment(**status):
    """Return the EldrDeployment in the morning."""
    pods = {"desired": 2, "ready": 2, "summary": "2/2"}
    told = {
        "observedGeneration": 4,
        "conditions": [
            condition("Ready", "True", "AllReady", "2 prefill, 4 decode, 2 routers ready", "2026-11-19T08:00:00Z"),
            condition("Available", "True", "MinimumReplicasAvailable", "requests can be served", "2026-11-19T08:00:00Z"),
            condition("ConfigValid", "True", "Valid", "every field is valid", "2026-11-19T08:00:00Z"),
            condition("CentroidsActive", "True", "Active", "the set of EldrFit chat-drift-3 is active", "2026-11-19T09:12:00Z"),
            condition("SignaturesReported", "False", "Missing", "8 % of 4120 prefill answers carried no expert counts",
                      "2026-11-22T06:31:00Z"),
            condition("DriftDetected", "False", "Quiet", "drift score 0.32 (threshold 1): of the last 6000 requests 2% have another "
                      "similarity to the centroids than expected, and 1% another nearest centroid", "2026-11-22T06:04:10Z"),
        ],
        "model": "qwen3",
        "url": "http://chat.team.svc",
        "prefill": pods,
        "decode": {"desired": 4, "ready": 4, "summary": "4/4"},
        "router": {"desired": 2, "ready": 2, "policyInEffect": "ELDR", "epoch": 5, "acks": "2/2"},
        "centroids": {
            "active": {"fit": "chat-drift-3", "digest": "sha256:33", "k": 4, "activatedAt": "2026-11-22T06:02:00Z"},
            "previous": {"fit": "chat-drift-1", "digest": "sha256:11", "k": 4},
        },
        "locality": {
            "expertSharePercent": 61,
            "message": "reading experts takes 61 % of a decode step: placement by experts can save a part of that, never more",
            "savingPercent": "9.4",
            "savingErrorPercent": "0.3",
            "predictedSavingPercent": "9.9",
            "driftScore": "0.32",
            "windowRequests": 6000,
            "driftDay": scores(),
        },
        "refit": {"schedule": "0 3 * * 0 UTC", "nextScheduleTime": "2026-11-29T03:00:00Z", "lastFit": "chat-drift-3"},
        "history": [
            {"time": "2026-11-19T09:12:00Z", "fit": "chat-bootstrap", "epoch": 1, "reason": "Accepted"},
            {"time": "2026-11-21T23:41:00Z", "fit": "chat-drift-1", "epoch": 2, "reason": "Accepted"},
            {"time": "2026-11-22T05:20:00Z", "fit": "chat-drift-2", "epoch": 3, "reason": "Accepted"},
            {"time": "2026-11-22T05:31:00Z", "fit": "chat-drift-1", "epoch": 4, "reason": "RolledBack"},
            {"time": "2026-11-22T06:02:00Z", "fit": "chat-drift-3", "epoch": 5, "reason": "Accepted"},
        ],
    }  # fmt: skip
    return {
        "metadata": {"name": "chat", "namespace": "team", "uid": "u1", "generation": 4},
        "spec": {"model": {"uri": "Qwen/Qwen3-30B-A3B"}, "router": {"policy": "ELDR"}},
        "status": told | status,
    }


def fit(name, trigger, created, reason, message, *, status="True", uid="u1", **more):
    """Return an EldrFit of the deployment."""
    spec = {"deploymentRef": {"name": "chat"}, "trigger": trigger}
    if "since" in more:
        spec["since"] = more.pop("since")
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": created,
            "ownerReferences": [{"kind": "EldrDeployment", "name": "chat", "uid": uid}],
        },
        "spec": spec,
        "status": {"conditions": [condition("Succeeded", status, reason, message, created)], "startedAt": created, **more},
    }  # fmt: skip


def fits():
    """Return what is left of the night's fits; the first one's EldrFit was deleted long ago."""
    saves = "Better: saves {} of active experts against JSQ; the active set {} {}, a difference of {} (at batch 16, 90 % intervals)"
    return [
        fit("chat-drift-2", "Drift", "2026-11-22T05:04:00Z", "Accepted",
            saves.format("8.8 % (7.1 to 10.4)", "saves", "2.1 % (0.9 to 3.4)", "6.7 % (4.9 to 8.3)"),
            since="2026-11-22T04:41:00Z", samples=612, predictedReductionPercent="8.8"),
        fit("chat-drift-1", "Drift", "2026-11-21T23:20:00Z", "Accepted",
            saves.format("9.1 % (8.0 to 10.1)", "regresses,", "-3.2 % (-4.6 to -1.9)", "12.3 % (10.2 to 14.2)"),
            since="2026-11-21T22:12:00Z", samples=2048, predictedReductionPercent="9.1"),
        fit("chat-drift-3", "Drift", "2026-11-22T05:48:00Z", "Accepted",
            saves.format("9.9 % (9.0 to 10.8)", "saves", "3.0 % (1.9 to 4.0)", "6.9 % (5.8 to 8.1)"),
            since="2026-11-22T04:58:00Z", samples=2210, predictedReductionPercent="9.9"),
        fit("chat-noon", "Manual", "2026-11-21T12:00:00Z", "Rejected", "NotBetter: saves 9.0 % (8.1 to 9.8) of active experts against JSQ", status="False", samples=4000, predictedReductionPercent="9.0"),
        {"metadata": {"name": "other"}, "spec": {"deploymentRef": {"name": "another"}}},
        fit("chat-old", "Bootstrap", "2026-11-01T12:00:00Z", "Accepted", "Better: of a deployment that is gone", uid="u0"),
    ]  # fmt: skip
