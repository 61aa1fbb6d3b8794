"""The cache of the API server: the later version stays, whoever comes last."""

import pytest

from eldr_operator.kube.cache import Cache
from tests.support.deep import nested


def pod(version, *, name="p", uid="u", namespace="n"):
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata}


def names(found):
    return [each["metadata"]["name"] for each in found]


@pytest.fixture
def cache():
    return Cache()


def test_the_later_version_stays(cache):
    cache.put("Pod", pod(9))
    cache.put("Pod", pod(10))
    cache.put("Pod", pod(9))
    assert cache.get("Pod", "n", "p") == pod(10)
    assert cache.get("Pod", "m", "p") is None
    assert repr(cache) == "<Cache objects=1>"


def test_of_who_owns_fields_only_what_others_may_change_is_kept(cache):
    made = pod(1)
    own, of_status = {"manager": "a", "fieldsV1": {}}, {"manager": "b", "subresource": "status"}
    made["metadata"]["managedFields"] = [own, of_status]
    kept = {}
    for kind in ("Pod", "EldrDeployment", "EldrScaler", "Service"):
        cache.put(kind, made)
        kept[kind] = cache.get(kind, "n", "p")["metadata"].get("managedFields")
    assert kept == {"Pod": None, "EldrDeployment": None, "EldrScaler": [own, of_status], "Service": [own]}
    assert made["metadata"]["managedFields"] == [own, of_status], "what was put is as it was"


def test_of_a_pod_its_node_is_kept_and_what_its_containers_ask_for(cache):
    asks = {"name": "engine", "resources": {"requests": {"cpu": "1"}}, "ports": [{"name": "admin-tls"}]}
    spec = {
        "nodeName": "a",
        "volumes": [{}],
        "containers": [{**asks, "env": [{}]}],
        "initContainers": [{"name": "router", "args": []}],
    }
    cache.put("Pod", {**pod(1), "spec": spec, "status": {"phase": "Running"}})
    assert cache.get("Pod", "n", "p") == {
        **pod(1),
        "spec": {"nodeName": "a", "containers": [asks], "initContainers": [{"name": "router"}]},
        "status": {"phase": "Running"},
    }


def test_the_template_in_a_revision_of_a_stateful_set_is_not_kept(cache):
    for name, kind in (("ours", "EldrDeployment"), ("theirs", "StatefulSet")):
        made = pod(1, name=name, uid=name)
        made["metadata"]["ownerReferences"] = [{"kind": kind}]
        cache.put("ControllerRevision", {**made, "data": {"spec": 1}})
    assert "data" in cache.get("ControllerRevision", "n", "ours")
    assert "data" not in cache.get("ControllerRevision", "n", "theirs")


@pytest.mark.parametrize("odd", [nested(239), 1 << 70, "\ud83d"])
def test_what_only_json_can_write_is_kept(cache, odd):
    cache.put("Service", {**pod(1), "spec": odd})
    assert cache.get("Service", "n", "p")["spec"] == odd
    assert len(cache.every("Service")) == 1


@pytest.mark.parametrize("make", [nested, lambda levels: [nested(levels - 1)]], ids=["objects", "a list"])
@pytest.mark.parametrize("levels", [260, 100_000])
def test_of_what_is_nested_very_deep_the_outer_levels_are_kept(cache, levels, make):
    cache.put("Service", {**pod(1), "spec": make(levels)})
    assert cache.get("Service", "n", "p") == {**pod(1), "spec": make(239)}


def test_kinds_that_are_not_watched_are_not_kept(cache):
    cache.put("Event", pod(1))
    assert repr(cache) == "<Cache objects=0>"


def test_what_is_gone_does_not_come_back_by_an_earlier_version(cache):
    cache.put("Pod", pod(3))
    cache.remove("Pod", pod(5))
    cache.put("Pod", pod(4))
    assert cache.of("Pod", "n") == []
    cache.put("Pod", pod(6))  # it lost our label, and got it back
    assert cache.of("Pod", "n") == [pod(6)]


def test_a_later_object_of_the_same_name_survives_the_end_of_the_earlier(cache):
    cache.put("Pod", pod(3))
    cache.put("Pod", pod(7, uid="other"))
    cache.remove("Pod", pod(6))
    assert cache.of("Pod", "n") == [pod(7, uid="other")]


def test_an_earlier_object_of_the_same_name_does_not_take_the_place_of_the_later(cache):
    cache.put("Pod", pod(7, uid="other"))  # this operator has made it
    cache.put("Pod", pod(3))
    cache.replace("Pod", None, [pod(4)], 5)
    assert cache.of("Pod", "n") == [pod(7, uid="other")]


def test_a_list_forgets_what_a_watch_missed_and_nothing_later(cache):
    cache.put("Pod", pod(3, name="lost", uid="a"))
    cache.put("Pod", pod(12, name="young", uid="b"))
    cache.put("Pod", pod(11, name="changed", uid="c"))
    cache.replace("Pod", None, [pod(9, name="changed", uid="c"), pod(8, name="new", uid="d")], 10)
    assert [
        (each["metadata"]["name"], each["metadata"]["resourceVersion"]) for each in cache.of("Pod", "n")
    ] == [
        ("changed", "11"),
        ("new", "8"),
        ("young", "12"),
    ]


def test_a_list_of_a_namespace_leaves_the_others(cache):
    cache.put("Pod", pod(1, name="elsewhere", namespace="other"))
    cache.put("Pod", pod(1, name="here", uid="v"))
    cache.replace("Pod", "n", [pod(4)], 5)
    assert {*names(cache.every("Pod"))} == {"elsewhere", "p"}


def test_what_is_gone_is_remembered_until_a_list_begins(cache):
    cache.remove("Pod", pod(5))
    cache.begin_list("Pod", "other")
    cache.put("Pod", pod(4))
    assert cache.of("Pod", "n") == []
    cache.begin_list("Pod", None)
    cache.replace("Pod", None, [pod(4)], 6)
    assert cache.of("Pod", "n") == [pod(4)]


def test_fits_are_found_by_the_deployment_that_they_are_for(cache):
    def fit(version, name, deployment):
        made = pod(version, name=name, uid=name)
        made["metadata"]["labels"] = {"eldr.dev/deployment": "copied"}
        return {**made, "spec": {"deploymentRef": {"name": deployment}}}

    for name, deployment in (("b", "x"), ("a", "x"), ("c", "y")):
        cache.put("EldrFit", fit(1, name, deployment))
    assert names(cache.of_deployment("EldrFit", "n", "x")) == ["a", "b"]
    assert (cache.of_deployment("EldrFit", "n", "copied"), cache.names("EldrFit", "m")) == ([], frozenset())
    assert cache.names("EldrFit", "n") == {"a", "b", "c"}
    cache.put("EldrFit", fit(2, "b", "y"))
    assert len(cache.of_deployment("EldrFit", "n", "x")) == 1


def test_objects_are_found_by_the_label_of_their_deployment(cache):
    def labelled(version, deployment, **fields):
        made = pod(version, **fields)
        made["metadata"]["labels"] = {"eldr.dev/deployment": deployment} if deployment else None
        return made

    cache.put("Pod", labelled(1, "x"))
    cache.put("Pod", labelled(2, "x", name="o", uid="v"))
    cache.put("Pod", labelled(2, "y", name="q", uid="w"))
    cache.put("Pod", labelled(2, "x", name="o", uid="z", namespace="m"))
    assert names(cache.of_deployment("Pod", "n", "x")) == ["o", "p"]
    cache.put("Pod", labelled(3, "y"))
    assert names(cache.of_deployment("Pod", "n", "y")) == ["p", "q"]
    cache.put("Pod", labelled(4, None))
    assert names(cache.of_deployment("Pod", "n", "y")) == ["q"]
    cache.remove("Pod", labelled(5, "y", name="q", uid="w"))
    cache.replace("Pod", "n", [], 9)
    assert cache.of_deployment("Pod", "n", "x") == cache.of_deployment("Pod", "n", "y") == []
    assert [each["metadata"]["uid"] for each in cache.of_deployment("Pod", "m", "x")] == ["z"]
