"""Routing documents, worker files, pods, settings."""

import copy

import pytest

from eldr import contract
from eldr_router.engines.load import Load, is_full, load_of, read_load
from eldr_router.engines.spec import EndpointSpec
from eldr_router.http.framing import LengthBody
from eldr_router.http.head import ResponseHead
from eldr_router.placement.table import (
    RoutingError,
    groups,
    parse,
)
from eldr_router.settings import Settings, SettingsError, parse_url
from eldr_router.sources.file import parse_workers
from eldr_router.sources.pods import engines, peers

SET = {"fit": "f", "digest": "sha256:0", "k": 4, "shards": [{"name": "s", "sha256": "00"}]}
DOCUMENT = {
    "version": 1,
    "model": "m",
    "epoch": 3,
    "policy": "ELDR",
    "tau": 0.2,
    "min_candidates": 2,
    "max_load": 1.5,
    "max_in_flight": 8,
    "sample_rate": 0.5,
    "lease_seconds": 60,
    "slots": 4,
    "active": SET,
    "staged": None,
}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"version": 2}, "version"),
        ({"policy": "Best"}, "policy"),
        ({"tau": 3}, "tau"),
        ({"tau": float("nan")}, "tau: expected `float` .* got nan"),
        ({"min_candidates": 0}, "min_candidates"),
        ({"max_load": 0.5}, "max_load"),
        ({"max_load": float("inf")}, "max_load"),
        ({"prior": -1}, "prior"),
        ({"policy": "Domain"}, "domains: policy Domain needs at least one, got none"),
        ({"domains": "code"}, "domains: expected `array`, got 'code'"),
        ({"domains": [{"name": "a b"}]}, r"domains\[0\].name: .* got 'a b'"),
        ({"domains": [{"name": "a", "weight": 2}]}, r"domains\[0\]: object contains unknown field `weight`"),
        ({"domains": [{"name": "a"}, {"name": "a"}]}, r"domains: every name counts once, got \['a', 'a'\]"),
        ({"domains": [{"name": "a", "share": 0}]}, r"domains\[0\].share: expected `float` >= 1e-06, got 0"),
        ({"max_waiting": -1}, "max_waiting"),
        ({"max_wait_seconds": 0}, "max_wait_seconds"),
        ({"sample_rate": 1.1}, "sample_rate"),
        ({"lease_seconds": 1}, "lease_seconds"),
        ({"epoch": -1}, "epoch"),
        ({"active": {**SET, "digest": ""}}, "active.digest"),
        ({"staged": {**SET, "k": 0}}, "staged.k: expected `int` >= 1, got 0"),
        ({"staged": {**SET, "shards": [{"name": "x"}]}}, r"staged.shards\[0\]: .*sha256"),
    ],
)
def test_documents_that_are_refused(change, names):
    with pytest.raises(RoutingError, match=names):
        parse({**DOCUMENT, **change})


def test_domains_share_the_slots_of_a_worker_file():
    def workers(*slots, domains="[{name: a}, {name: b}]"):
        decode = ", ".join(
            f"{{name: d{at}, url: 'http://h:{at + 1}', slot: {slot}}}" for at, slot in enumerate(slots)
        )
        return parse_workers(f"policy: Domain\ndomains: {domains}\ndecode: [{decode}]\n")[0]

    assert groups(workers(7, 2, -1)) == {"a": frozenset({2}), "b": frozenset({7})}
    with pytest.raises(RoutingError, match="domains: 2 of them cannot share 1 decode engines with a slot"):
        workers(7, -1)
    with pytest.raises(RoutingError, match="domains: 2 of them cannot share 0 decode engines with a slot"):
        workers(-1, -1)
    assert groups(workers()) == {}, "engines may come later"


def test_a_worker_file():
    document, prefill, decode = parse_workers(
        """
        model: m
        tau: 0.3
        prefill: [{name: p, url: "http://10.0.0.1:8100"}]
        decode:
          - {name: a, url: http://h}
          - {name: b, url: "http://h:1/", slot: 7, kv: new}
        """
    )
    assert (document.model, document.tau, document.max_in_flight) == ("m", 0.3, 256)
    assert prefill == [EndpointSpec("prefill", "p", "10.0.0.1", 8100, -1)]
    assert decode == [
        EndpointSpec("decode", "a", "h", contract.PORT_ENGINE, 0),
        EndpointSpec("decode", "b", "h", 1, 7, "new"),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a: [", "YAML"),
        ("[]", "Expected `object`"),
        ("modle: m", "modle"),
        ("decode: [3]", r"decode\[0\]"),
        ("decode: [{name: a, url: 'https://h'}]", "url"),
        ("decode: [{name: a, url: 'http://h/path'}]", "url"),
        ("decode: [{name: a, url: 'http://h:99999'}]", "url"),
        ("decode: [{name: a, url: 'http://h', slot: x}]", "slot"),
        ("decode: [{name: a, url: 'http://h', kv: 3}]", r"decode\[0\].kv"),
        ("decode: [{name: a, url: 'http://h'}, {name: a, url: 'http://h'}]", "twice"),
        (
            "decode: [{name: a, url: 'http://h', slot: 1}, {name: b, url: 'http://h', slot: 1}]",
            "every slot belongs to one engine",
        ),
        ('decode: [{name: "a\\r\\nb", url: "http://h"}]', r"decode\[0\].name"),
        ("policy: x", "policy"),
        ("decode: !!set {a}", "decode"),
        ('"\\ud800": 1', "surrogates not allowed"),
        ('"x - at `$.foo": 1', "unknown field"),
    ],
)
def test_worker_files_that_are_refused(text, names):
    with pytest.raises(RoutingError, match=names):
        parse_workers(text)


def pod(name="d-0", role="decode", index="0", ready=True, ip="10.0.0.1", **metadata):
    labels = {contract.LABEL_ROLE: role, contract.LABEL_DEPLOYMENT: "x"}
    if index is not None:
        labels[contract.LABEL_STATEFULSET_INDEX] = index
    return {
        "metadata": {"name": name, "labels": labels, **metadata},
        "status": {
            "podIP": ip,
            "containerStatuses": [{"name": "engine", "ready": ready, "state": {"running": {}}}],
        },
    }


def test_engines_from_pods():
    assert engines([pod()]) == [EndpointSpec("decode", "d-0", "10.0.0.1", contract.PORT_ENGINE, 0)]
    assert engines([pod(role="prefill", index=None)])[0].slot == -1
    assert [e.slot for e in engines([pod("d-10", index="10"), pod("d-2", index="2")])] == [2, 10]
    assert engines([pod(ready=False)]) == []
    assert engines([pod(ip="")]) == []
    assert engines([pod(deletionTimestamp="2026-01-01T00:00:00Z")]) == []
    assert engines([pod(role="router")]) == []
    failed = pod()
    failed["status"]["phase"] = (
        "Failed"  # by Kubernetes, as on a lost node: its containers are still marked ready
    )
    assert engines([failed]) == []
    assert engines([{"metadata": {"name": "x"}}]) == []


def test_an_engine_is_ready_though_its_pod_is_not():
    sidecar = pod(role="prefill", index=None)
    sidecar["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    sidecar["status"]["initContainerStatuses"] = [
        {"name": "router", "ready": False, "state": {"running": {}}}
    ]
    assert len(engines([sidecar])) == 1


def test_peers_from_pods():
    router = pod("p-0", "prefill", None, ip="10.0.0.2")
    router["metadata"]["labels"][contract.LABEL_ROUTER] = "true"
    router["status"]["initContainerStatuses"] = [{"name": "router", "ready": True, "state": {"running": {}}}]
    waiting = copy.deepcopy(router)
    waiting["status"]["podIP"] = "10.0.0.3"
    waiting["status"]["initContainerStatuses"][0]["state"] = {"waiting": {}}
    leaving = copy.deepcopy(router)
    leaving["status"]["podIP"] = "10.0.0.4"
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    over, unborn = copy.deepcopy(router), copy.deepcopy(router)
    over["status"] |= {"podIP": "10.0.0.5", "phase": "Failed"}
    del unborn["status"]
    pods = [router, waiting, leaving, over, unborn, pod()]
    port = contract.PORT_ADMIN
    assert peers(pods, "") == [("10.0.0.2", port), ("10.0.0.3", port), ("10.0.0.4", port)]
    assert peers(pods, "10.0.0.2") == [("10.0.0.3", port), ("10.0.0.4", port)]


def test_settings(tmp_path):
    base = {"workers": tmp_path / "w"}
    assert Settings(**base).admin == "127.0.0.1"
    with pytest.raises(SettingsError, match="ELDR_ADMIN_TOKEN"):
        Settings(**base, host="0.0.0.0")
    with pytest.raises(SettingsError, match="ELDR_ADMIN_TOKEN"):
        Settings(**base, admin_host="example.com")
    assert Settings(**base, host="0.0.0.0", admin_host="127.0.0.1").admin == "127.0.0.1"
    assert Settings(**base, host="0.0.0.0", admin_token="t").admin == "0.0.0.0"
    assert Settings(**base, host="::1").admin == "::1"
    assert Settings(**base, host="localhost").admin == "localhost"
    with pytest.raises(SettingsError, match="--workers"):
        Settings()
    with pytest.raises(SettingsError, match="--deployment"):
        Settings(source="kubernetes", namespace="x")
    with pytest.raises(SettingsError, match="--peer"):
        Settings(**base, peers=("nonsense",))
    with pytest.raises(SettingsError, match="--peer"):
        Settings(**base, peers=("http://10.0.0.1:0",))


def test_urls():
    assert parse_url("x", "http://[::1]:5", 80) == ("::1", 5)
    assert parse_url("x", "http://host", 80) == ("host", 80)
    for wrong in ("bad..host:5", "x" * 70 + ":5", "host:0", "host:65536"):
        with pytest.raises(SettingsError, match="x: expected http://host:port"):
            parse_url("x", f"http://{wrong}", 80)


def test_what_engines_report():
    def head(status=200, **headers):
        pairs = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        return ResponseHead(status, pairs, LengthBody(0), keep_alive=True, content_type=b"")

    assert load_of(head(x_eldr_load=b"3/8")) == Load(3, 8)
    assert load_of(head(x_other=b"3/8")) is None
    for wrong in (b"", b"3", b"-1/8", b"3/8/9", b"3 / 8", b"1" * 10 + b"/1", b"1.5/2"):
        assert load_of(head(x_eldr_load=wrong)) is None
    assert is_full(head(429, x_eldr_full=b"8/8"))
    assert not is_full(head(429, x_eldr_load=b"8/8"))
    assert not is_full(head(503, x_eldr_full=b"8/8"))
    good = b'{"v":1,"in_flight":3,"limit":8}'
    assert read_load(200, good) == Load(3, 8)
    assert read_load(404, b'{"detail":"Not Found"}') is None
    for status, body in (
        (503, good),
        (401, good),
        (200, b""),
        (200, b"[1, 2]"),
        (200, b'{"in_flight":3}'),
        (200, b'{"in_flight":-1,"limit":8}'),
        (200, b'{"in_flight":3,"limit":1e300}'),
    ):
        assert read_load(status, body) is None
