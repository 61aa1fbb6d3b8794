"""Each check of `eldr doctor`: what is wrong is found, with its remedy, and what is right is not."""

import pytest

from eldr import contract
from eldr.doctor import conditions, devices, model, network, pods, quota, references, routers
from eldr.doctor.facts import Answer, Finding, Skipped, Unseen
from eldr.doctor.report import CHECKS, CONDITIONS, examine
from eldr.status import hold
from tests.unit.doctor.healthy import LEASE, NOW, deployment, facts, node, pod

TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}


def told(said):
    """Return the findings of a check as text, with their remedies."""
    return [
        f"{one.about}: {one.problem} => {one.remedy}" if isinstance(one, Finding) else f"skipped: {one.why}"
        for one in said
    ]


def says(said, *wanted):
    """Assert that there is one finding for each text, with these words in it."""
    found = told(said)
    assert len(found) == len(wanted), found
    for text, words in zip(found, wanted, strict=True):
        for word in words:
            assert word in text, text


def stuck(reason, message="", **more):
    found = pod()
    (status,) = found["status"]["containerStatuses"]
    status |= {"ready": False, "state": {"waiting": {"reason": reason, "message": message}}, **more}
    return found


def test_a_healthy_deployment_has_no_finding_and_no_check_is_skipped():
    report = examine(facts(), NOW)
    assert [(one.check, told(one.problems), one.skipped) for one in report.results] == [
        (name, [], ()) for name in (*(check.name for check in CHECKS), CONDITIONS)
    ]


def crashing(number, restarts):
    found = pod(number=number)
    (status,) = found["status"]["containerStatuses"]
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "message": "no space"}}
    status |= {"ready": False, "restartCount": restarts, "lastState": ended}
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    return found


def test_one_cause_of_several_pods_is_reported_once():
    report = examine(facts(pods=tuple(crashing(n, 3 + n) for n in range(5))), NOW)
    (found,) = (one for result in report.results for one in result.problems)
    assert found.about == "pods x-decode-0, x-decode-1, x-decode-2 and 2 more"
    assert found.remedy == "as it says; more in kubectl -n team logs x-decode-0 -c engine --previous"


def test_pods_with_different_causes_are_reported_each():
    other = crashing(1, 3)
    other["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] = 137
    report = examine(facts(pods=(crashing(0, 3), other)), NOW)
    found = [one.about for result in report.results for one in result.problems]
    assert found == ["pod x-decode-0", "pod x-decode-1"]


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("ErrImagePull", "pull access denied for registry.test/vllm", ("create a pull Secret",)),
        ("ErrImagePull", "manifest unknown", ("no such image: correct engine.image",)),
        ("ErrImagePull", "dial tcp: lookup registry.test: no such host", ("no registry has that name",)),
        ("ImagePullBackOff", "", ("kubectl describe pod x-decode-0",)),
    ],
)
def test_images(reason, message, words):
    broken = stuck(reason, message)
    says(pods.images(facts(pods=(broken,))), ("image registry.test/vllm:1", reason, *words))
    says(pods.images(facts(pods=(broken, broken))), ("image registry.test/vllm:1",))


def test_a_pull_secret_that_is_refused_is_to_be_renewed():
    broken = stuck("ErrImagePull", "unauthorized")
    broken["spec"]["imagePullSecrets"] = [{"name": "pull"}]
    says(pods.images(facts(pods=(broken,))), ("renew the pull Secret",))


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (stuck("CreateContainerConfigError", 'secret "s" not found'), ('secret "s" not found',)),
        (
            stuck("CrashLoopBackOff", restartCount=4, lastState={"terminated": {"exitCode": 3}}),
            ("exit code 3", "4 restarts", "kubectl logs x-decode-0 -c engine --previous"),
        ),
        (
            stuck("CrashLoopBackOff", lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}}),
            ("ran out of memory", "raise the memory limit"),
        ),
        (
            stuck("", restartCount=3, state={"running": {}}, lastState={"terminated": {"exitCode": 1}}),
            ("ends again and again (exit code 1)", "3 restarts"),
        ),
    ],
)
def test_containers(broken, words):
    says(pods.containers(facts(pods=(broken,))), ("pod x-decode-0", *words))


def test_pods_that_no_node_takes():
    waiting = pod()
    waiting["status"] = {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available",
            }
        ]
    }
    says(pods.containers(facts(pods=(waiting,))), ("0/3 nodes are available", "add nodes"))


@pytest.mark.parametrize(
    ("spec", "nodes", "words"),
    [
        (
            {"accelerator": {"resourceName": "amd.com/gpus"}},
            [node()],
            ("amd.com/gpus", "none of 1 nodes offers it", "devices that nodes have: amd.com/gpu"),
        ),
        ({}, [node(**{"amd.com/gpu": "2"})], ("ask for 3 altogether", "offer 2")),
        (
            {"decode": {"replicas": 1, "gpus": 4}},
            [node("a", **{"amd.com/gpu": "2"}), node("b", **{"amd.com/gpu": "3"})],
            ("a pod of decode asks for 4, the largest node offers 3", "decode.gpus"),
        ),
        (
            {"decode": {"replicas": 0}},
            [node() | {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}],
            ("none of them takes pods of prefill", "tolerations"),
        ),
        ({"decode": {"replicas": 0}}, [node() | {"spec": {"unschedulable": True}}], ("uncordon",)),
    ],
)
def test_devices(spec, nodes, words):
    says(devices.accelerators(facts(spec, nodes=tuple(nodes))), words)


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "k", "value": "v", "effect": "NoSchedule"},
    ],
)
def test_nodes_whose_taints_are_tolerated_count(toleration):
    patch = {"podTemplate": {"spec": {"tolerations": [toleration]}}}
    tainted = node() | {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}
    says(devices.accelerators(facts({"prefill": patch, "decode": patch}, nodes=(tainted,))))


def with_rdma(**container):
    asked = {"limits": {"rdma/ib": "1"}}
    return {"podTemplate": {"spec": {"containers": [{"name": "engine", "resources": asked, **container}]}}}


PINS = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}


@pytest.mark.parametrize(
    ("prefill", "decode", "offered", "wanted"),
    [
        (with_rdma(**PINS), with_rdma(**PINS), {"rdma/ib": "8"}, []),
        (
            with_rdma(**PINS),
            with_rdma(**PINS),
            {},
            [("rdma/ib", "none of 1 nodes offers it", "the resource in podTemplate")],
        ),
        (with_rdma(**PINS), {}, {"rdma/ib": "8"}, [("decode: its pods ask for no RDMA device", "TCP")]),
        (with_rdma(**PINS), with_rdma(), {"rdma/ib": "8"}, [("decode: its engines may not pin", "IPC_LOCK")]),
    ],
)
def test_rdma(prefill, decode, offered, wanted):
    says(devices.rdma(facts({"prefill": prefill, "decode": decode}, nodes=(node(**offered),))), *wanted)


def a_quota(hard, used=None, **spec):
    return {
        "metadata": {"name": "q"},
        "spec": {"hard": hard, **spec},
        "status": {"used": used or {}},
    }


def a_limit(**item):
    return {"metadata": {"name": "l"}, "spec": {"limits": [item]}}


@pytest.mark.parametrize(
    ("quotas", "limits", "made", "wanted"),
    [
        (
            [a_quota({"requests.amd.com/gpu": "4"}, {"requests.amd.com/gpu": "3"})],
            [],
            1,
            [("ResourceQuota q", "1 of 4", "take 2")],
        ),
        ([a_quota({"pods": "3"}, {"pods": "1"})], [], 1, []),
        ([a_quota({"pods": "2"}, {"pods": "1"})], [], 1, [("1 of 2 pods are left", "take 2")]),
        (
            [a_quota({"limits.cpu": "64"})],
            [],
            3,
            [("wants limits.cpu of every container", "container engine of prefill")],
        ),
        ([a_quota({"limits.cpu": "64"})], [a_limit(type="Container", default={"cpu": "1"})], 3, []),
        ([a_quota({"pods": "1"}, {"pods": "1"}, scopes=["BestEffort"])], [], 0, []),
        (
            [],
            [a_limit(type="Container", max={"amd.com/gpu": "0"})],
            3,
            [("container engine of prefill asks for 1",), ("of decode",)],
        ),
        (
            [],
            [a_limit(type="Pod", min={"amd.com/gpu": "2"})],
            3,
            [("a pod of prefill asks for 1", "at least 2"), ("decode",)],
        ),
    ],
)
def test_quota(quotas, limits, made, wanted):
    running = (pod("prefill"), pod(), pod(number=1))[:made]
    says(quota.look(facts(quotas=tuple(quotas), limits=tuple(limits), pods=running)), *wanted)


VOLUMES = [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}]
MODELS = {"decode": {"podTemplate": {"spec": {"volumes": VOLUMES}}}}
HUB = {"engine": {"env": [TOKEN]}}


@pytest.mark.parametrize(
    ("spec", "referred", "wanted"),
    [
        (
            HUB,
            {("Secret", "hub"): None},
            [("Secret hub", "does not exist in namespace team", "kubectl create secret generic hub")],
        ),
        (
            HUB,
            {("Secret", "hub"): {"keys": ["tok"]}},
            [("no key token", "it has tok")],
        ),
        (
            HUB,
            {("Secret", "hub"): Unseen("may not get secrets")},
            [("skipped: may not get secrets",)],
        ),
        (
            {"prefill": {"podTemplate": {"spec": {"imagePullSecrets": [{"name": "pull"}]}}}},
            {("Secret", "pull"): None},
            [("Secret pull", "imagePullSecrets of prefill")],
        ),
        (
            MODELS,
            {("PersistentVolumeClaim", "models"): None},
            [("PersistentVolumeClaim models", "create the claim")],
        ),
        (
            MODELS,
            {
                ("PersistentVolumeClaim", "models"): {
                    "status": {"phase": "Pending"},
                    "spec": {"accessModes": ["ReadWriteOncePod"], "storageClassName": "fast"},
                    "keys": [],
                }
            },
            [("no volume is bound", "storage class fast"), ("ReadWriteOncePod", "2 need it")],
        ),
    ],
)
def test_references(spec, referred, wanted):
    says(references.look(facts(spec, referred=referred)), *wanted)


def test_optional_references_and_the_operators_own_secret_may_be_missing():
    optional = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}}
    own = {"name": "B", "valueFrom": {"secretKeyRef": {"name": "x-admin", "key": "token"}}}
    assert references.references(facts({"engine": {"env": [optional, own]}}).templates, "x") == []


@pytest.mark.parametrize(
    ("log", "env", "words"),
    [
        ("E 401 Client Error: Unauthorized for url: https://huggingface.co/x", [], ("401", "tokenSecret")),
        (
            "E huggingface_hub.errors.GatedRepoError: Access denied",
            [TOKEN],
            ("403", "accept the model's terms"),
        ),
        ("E RepositoryNotFoundError: 404 Client Error", [], ("404", "correct model.uri")),
        ("E Failed to resolve 'huggingface.co'", [], ("does not reach the hub", "egress")),
    ],
)
def test_model_by_the_engines_log(log, env, words):
    found = facts({"engine": {"env": env}}, logs={"x-decode-0": f"INFO start\n{log}\nINFO end"})
    says(model.look(found), ("engine of pod x-decode-0", log, *words))


def test_a_log_without_such_lines_says_nothing_and_an_unseen_one_is_said():
    says(model.look(facts(logs={"x-decode-0": "INFO loading, 404 layers"})))
    says(model.look(facts(logs={"p": Unseen("may not get pods/log")})), ("skipped: may not get pods/log",))


def test_a_path_without_a_volume_is_a_problem_of_engines_that_are_not_ready():
    spec = {"model": {"uri": "/models/q"}}
    mounted = {
        "podTemplate": {
            "spec": {
                "containers": [{"name": "engine", "volumeMounts": [{"name": "m", "mountPath": "/models"}]}]
            }
        }
    }
    starting = facts(spec | {"prefill": mounted})
    starting.deployment["status"] |= {role: {"ready": 0, "desired": 1} for role in ("prefill", "decode")}
    says(model.look(facts(spec)))
    says(model.look(starting), ("model.uri", "no volume of decode is mounted at /models/q"))


OWN = {"podSelector": {"matchLabels": {contract.LABEL_DEPLOYMENT: "x"}}}


def policy(name, *, ingress=None, egress=None, selector=None):
    spec = {"podSelector": selector or {}, "policyTypes": []}
    for kind, rules in (("Ingress", ingress), ("Egress", egress)):
        if rules is not None:
            spec["policyTypes"].append(kind)
            spec[kind.lower()] = rules
    return {"metadata": {"name": name}, "spec": spec}


OPERATORS = policy(
    "x",
    ingress=[{"from": [OWN]}, {"ports": [{"port": 8000}]}],
    selector={"matchLabels": {contract.LABEL_DEPLOYMENT: "x"}},
)
DENY = policy("deny", ingress=[])


@pytest.mark.parametrize(
    ("policies", "wanted"),
    [
        ([OPERATORS, DENY], []),
        ([policy("deny", ingress=[], selector={"matchLabels": {"app": "other"}})], []),
        (
            [DENY],
            [
                ("NetworkPolicy deny", "lets clients reach routers at port 8000", "networkPolicy to Enabled"),
                ("prefill pods reach prefill engines, port 8100",),
                ("decode pods reach prefill engines' KV, port 5600",),
                ("prefill pods reach the other routers, port 9100",),
                ("prefill pods reach decode engines, port 8100",),
            ],
        ),
        (
            [OPERATORS, policy("out", egress=[{"to": [OWN]}])],
            [("prefill pods out to the hub", "org/model"), ("decode pods out to the hub",)],
        ),
        ([OPERATORS, policy("out", egress=[{"to": [OWN, {"ipBlock": {"cidr": "0.0.0.0/0"}}]}])], []),
        ([policy("ports", ingress=[{"ports": [{"port": 5000, "endPort": 9200}]}])], []),
        (
            [policy("clients", ingress=[{"from": [{"namespaceSelector": {}}]}])],
            [],
        ),
    ],
)
def test_network(policies, wanted):
    says(network.look(facts(policies=tuple(policies))), *wanted)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"service": None}, [("Service x", "does not exist")]),
        ({"pods": (pod("prefill") | {"status": {}}, pod())}, [("none of the 1 pods behind it is ready",)]),
        ({"routers": (Answer("p", 401, "no key"),)}, []),
        ({"routers": (Answer("p", 503, "no prefill"),)}, [("with 503: no prefill", "no engine is there")]),
        ({"routers": (Answer("p", None, "timed out"),)}, [("does not answer: timed out", "port 8000")]),
        ({"routers": Unseen("may not get pods/proxy")}, [("skipped: may not get pods/proxy",)]),
    ],
)
def test_routers(changes, wanted):
    says(routers.look(facts(**changes)), *wanted)


def test_a_router_that_does_not_run_yet_is_no_cause():
    silent = (Answer("x-prefill-0", None, "refused"),)
    (found,) = routers.look(facts(routers=silent))
    assert not found.is_symptom
    starting = pod("prefill") | {"status": {}}
    assert all(one.is_symptom for one in routers.look(facts(routers=silent, pods=(starting, pod()))))


def broken(kind, reason, status="False"):
    found = deployment()
    others = [one for one in found["status"]["conditions"] if one["type"] != kind]
    own = {"type": kind, "status": status, "reason": reason, "message": "so it is"}
    found["status"]["conditions"] = [*others, own]
    return found


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (broken("SignaturesReported", "Missing"), [("SignaturesReported: Missing: so it is", "prefill")]),
        (broken("CentroidsActive", "LearnedPrior"), []),
        (broken("ConfigValid", "InvalidSchedule"), [("InvalidSchedule", "conditions.md")]),
        (broken("Progressing", "RolledBack"), [("Progressing: RolledBack: so it is", "eldr rollout status")]),
        (broken("Progressing", "RolloutInProgress", "True"), []),
        (broken("Ready", "ClusterUnreadable", "Unknown"), [("Ready: ClusterUnreadable",)]),
        (broken("Degraded", "NoMatchingPrefill", "True"), [("Degraded: NoMatchingPrefill",)]),
        (broken("DriftDetected", "Suspended", "True"), [("Suspended", "refit.suspend")]),
        (
            deployment() | {"status": {}},
            [("operator: the operator has written no status", "kubectl get pods")],
        ),
    ],
)
def test_conditions(found, wanted):
    says(conditions.look(facts(deployment=found), NOW), *wanted)


@pytest.mark.parametrize(
    ("lease", "found"),
    [
        (None, "Lease eldr-served-by does not exist: no operator serves namespace team"),
        ({"spec": {"holderIdentity": ""}}, "is released: the operator that served namespace team has ended"),
        (
            {"spec": LEASE["spec"] | {"renewTime": "2026-11-22T07:04:58.123456Z"}},
            "was last renewed 302 s ago: the operator of release eldr-system/eldr-operator does not run",
        ),
    ],
    ids=["uninstalled before", "ended", "died"],
)
def test_a_namespace_that_no_operator_serves_is_said_once(lease, found):
    """Also where the status is behind: that has the same cause."""
    behind = deployment()
    behind["metadata"]["generation"] = 2
    says(conditions.look(facts(deployment=behind, lease=lease), NOW), ("operator", found, "install or start"))


def test_a_lease_of_a_moment_ago_is_fine_whatever_clock_asks():
    ahead = {"spec": LEASE["spec"] | {"renewTime": "2026-11-22T07:12:00Z"}}
    says(conditions.look(facts(lease=ahead), NOW))
    assert list(conditions.look(facts(lease=Unseen("may not get leases")), NOW)) == [
        Skipped("may not get leases")
    ]


def test_what_a_killed_comparison_left_is_said_and_one_that_runs_is_not():
    found = deployment()
    mark = hold.new(found, "i", NOW, "JSQ")
    found["metadata"]["annotations"] = {hold.ANNOTATION: mark.dump()}
    says(conditions.look(facts(deployment=found), NOW))
    later = NOW + hold.LIFETIME
    lease = {"spec": LEASE["spec"] | {"renewTime": later.isoformat()}}
    says(
        conditions.look(facts(deployment=found, lease=lease), later),
        ("eldr.dev/compare", "left policy JSQ", "eldr compare x --restore"),
    )


def test_a_condition_whose_cause_is_found_is_not_said_again():
    broken_pod = stuck("ErrImagePull", "manifest unknown")
    report = examine(facts(deployment=broken("DecodeReady", "ImagePull"), pods=(broken_pod,)), NOW)
    assert [one.check for one in report.results for _ in one.problems] == ["images"]
    report = examine(facts(deployment=broken("DecodeReady", "PodsNotReady")), NOW)
    assert [one.check for one in report.results for _ in one.problems] == ["conditions"]


def evicted(number, role="decode"):
    found = pod(role, number)
    found["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory",
        "containerStatuses": [stuck("ImagePullBackOff")["status"]["containerStatuses"][0]],
    }
    return found


def test_pods_that_kubernetes_failed_are_counted_where_their_role_lacks_pods():
    lacks = deployment()
    lacks["status"]["decode"]["ready"] = 1
    found = facts(pods=(evicted(3), evicted(2), evicted(1, "prefill")), deployment=lacks)
    says(pods.containers(found), ("pod x-decode-2", "2 pods of decode failed", "Evicted: The node was low"))
    says(pods.containers(facts(pods=(evicted(2),))))


def test_a_failed_pod_is_none_behind_the_service():
    behind = [pod("prefill"), evicted(1, "prefill")]
    behind[0]["status"]["conditions"][0]["status"] = "False"
    says(routers.look(facts(pods=tuple(behind), routers=())), ("none of the 1 pods behind it is ready",))


@pytest.mark.parametrize(
    ("by", "asked", "is_said"),
    [("kubectl", 3, True), ("kubectl", 2, False), ("kube-controller-manager", 3, False), ("", None, False)],
)
def test_replicas_of_the_spec_that_a_person_has_overridden(by, asked, is_said):
    scaled = deployment()
    scaled["status"]["decode"] |= {"scaledBy": by, "specReplicas": asked} if by else {}
    words = (
        "spec.decode.replicas: 3 is ignored: kubectl has set 2",
        "kubectl annotate eldrscaler/x-decode eldr.dev/replicas=spec",
    )
    says(conditions.look(facts(deployment=scaled), NOW), *[words] * is_said)
