"""The cache of the API server: the later version stays, whoever comes last."""

import pytest

from eldr_operator.kube.cache import WATCHED, Cache


def pod(version, *, name="p", uid="u", namespace="n"):
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata}


class Api:
    """Answers lists of pods with what it was given; all else is empty."""

    def __init__(self, version, *pods):
        self.version, self.pods = version, pods
        self.asked = []

    async def list(self, kind, namespace, *, labels=""):
        self.asked.append((kind, namespace, labels))
        found = [pod for pod in self.pods if namespace in {None, pod["metadata"]["namespace"]}]
        return (found if kind == "Pod" else []), self.version


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


async def test_a_list_forgets_what_a_watch_missed_and_nothing_later(cache):
    cache.put("Pod", pod(3, name="lost", uid="a"))
    cache.put("Pod", pod(12, name="young", uid="b"))
    cache.put("Pod", pod(11, name="changed", uid="c"))
    await cache.fill(Api(10, pod(9, name="changed", uid="c"), pod(8, name="new", uid="d")), ())
    assert [
        (each["metadata"]["name"], each["metadata"]["resourceVersion"]) for each in cache.of("Pod", "n")
    ] == [
        ("changed", "11"),
        ("new", "8"),
        ("young", "12"),
    ]


async def test_lists_are_of_the_namespaces_watched_and_by_label(cache):
    cache.put("Pod", pod(1, name="elsewhere", namespace="other"))
    api = Api(5, pod(4))
    await cache.fill(api, ("n", "m"))
    assert {namespace for _, namespace, _ in api.asked} == {"n", "m"}
    assert {kind: labels for kind, _, labels in api.asked} == WATCHED
    assert len(cache.every("Pod")) == 2, "what is elsewhere is not this list's business"
