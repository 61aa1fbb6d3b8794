"""Each kind in each namespace is read by itself: one that cannot be read leaves the others alone, and is told."""

import asyncio
import itertools

import pytest

from eldr_operator.errors import ApiError, ApiUnavailableError
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.streams import Stream, Streams

FORBIDDEN = ApiError(403, "Forbidden", "no right")


class Api:
    """Lists a pod in each namespace, but for what it is told to fail."""

    def __init__(self):
        self.failing = {}
        self.absent = set()
        self.asked = []

    async def list(self, kind, namespace, *, labels="", keep=None, came=None):
        self.asked.append((kind, namespace, labels))
        for key in (kind, namespace, (kind, namespace)):
            if key in self.failing:
                raise self.failing[key]
        name = namespace or "n"
        metadata = {"name": "p", "namespace": name, "uid": name, "resourceVersion": "4"}
        return ([{"metadata": metadata}] if kind == "Pod" else []), 5

    async def request(self, method, url):
        assert method == "GET"
        if url.rpartition("/")[2] in self.absent:
            raise ApiError(404, "NotFound", "no namespace")
        raise FORBIDDEN


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def cache():
    return Cache()


async def listed(api, cache, *namespaces):
    streams = Streams(api, cache, namespaces)
    await streams.list(everything=True)
    return streams


async def test_lists_are_of_the_namespaces_served_and_by_label(api, cache):
    streams = Streams(api, cache, ("n", "m"))
    assert len(streams.blind) == 2 * len(WATCHED)
    assert streams.unlisted("n") == WATCHED.keys()
    await streams.list(everything=True)
    assert {namespace for _, namespace, _ in api.asked} == {"n", "m"}
    assert {kind: labels for kind, _, labels in api.asked} == WATCHED
    assert streams.blind == {}
    assert len(cache.every("Pod")) == 2


async def test_a_kind_that_may_not_be_listed_is_told_and_the_others_go_on(api, cache, caplog):
    api.failing["Role"] = FORBIDDEN
    streams = await listed(api, cache)
    assert streams.blind == {Stream("Role", None): "403 Forbidden: no right"}
    assert (streams.unlisted("anywhere"), cache.get("Pod", "n", "p") is not None) == ({"Role"}, True)
    (why,) = streams.refused("anywhere").values()
    assert why.startswith("the operator cannot list roles in all namespaces: 403 Forbidden: no right; give")
    api.asked.clear()
    await streams.list(everything=False)
    assert [kind for kind, _, _ in api.asked] == ["Role"], "what was listed is not listed again at once"
    assert caplog.text.count("cannot list roles") == 1
    api.failing.clear()
    await streams.list(everything=False)
    assert (streams.blind, streams.refused("anywhere")) == ({}, {})


async def test_a_namespace_that_is_gone_is_left_out_until_it_is_back(api, cache):
    streams = await listed(api, cache, "n", "m")
    api.failing["m"] = FORBIDDEN
    api.absent.add("m")
    await streams.list(everything=True)
    assert streams.blind == {}
    assert [pod["metadata"]["namespace"] for pod in cache.every("Pod")] == ["n"]
    assert streams.unlisted("m") == WATCHED.keys()
    assert streams.unlisted("n") == frozenset()
    api.failing.clear()
    api.absent.clear()
    await streams.list(everything=False)
    assert streams.unlisted("m") == frozenset()
    assert len(cache.every("Pod")) == 2


async def test_a_namespace_that_is_there_and_may_not_be_read_is_told(api, cache):
    api.failing["m"] = FORBIDDEN
    streams = await listed(api, cache, "n", "m")
    assert {stream.namespace for stream in streams.blind} == {"m"}


async def test_no_answer_is_told_as_such_and_is_nobodys_missing_right(api, cache):
    api.failing["n"] = ApiUnavailableError("no answer")
    api.absent.add("n")
    streams = await listed(api, cache, "n")
    assert set(streams.blind.values()) == {"no answer"}
    assert streams.refused("n") == {}


async def test_what_went_while_a_watch_failed_is_seen_by_a_list_after_it_is_back(api, cache):
    streams, pods = await listed(api, cache), Stream("Pod", None)
    streams.watches.fails(pods)
    for is_back, asked in ((False, ["Pod"]), (False, ["Pod"]), (True, ["Pod"]), (True, [])):
        if is_back:
            streams.watches.failing.discard(pods)
        api.asked.clear()
        await streams.list(everything=False)
        assert [kind for kind, _, _ in api.asked] == asked


@pytest.mark.parametrize(
    ("namespace", "name"),
    [(None, "watcher for pods.v1@None"), ("n", "watcher for pods.v1@n")],
)
async def test_a_watch_that_fails_is_told_until_it_is_answered(api, cache, namespace, name):
    streams = await listed(api, cache, *([namespace] if namespace else []))
    failed, answered = asyncio.Event(), asyncio.Event()

    async def watch():
        for attempt, _ in enumerate(itertools.chain(streams.watches, [None])):
            if attempt == 2:
                failed.set()
                await answered.wait()
                return

    task = asyncio.create_task(watch(), name=name)
    await failed.wait()
    assert list(streams.blind) == [Stream("Pod", namespace)]
    api.asked.clear()
    await streams.list(everything=False)
    assert [(kind, where) for kind, where, _ in api.asked] == [("Pod", namespace)], "lists take its place"
    assert streams.blind
    answered.set()
    await task
    assert streams.blind == {}


async def test_other_requests_of_kopf_are_nobodys_watch(api, cache):
    streams = await listed(api, cache)
    assert list(itertools.islice(streams.watches, 6)) == [1.0, 2.0, 5.0, 10.0, 30.0, 30.0]
    assert streams.blind == {}


async def test_while_no_watch_lives_nothing_counts_as_read_until_each_is_answered_again(api, cache):
    streams = await listed(api, cache)
    streams.watches.end()
    assert {stream.kind for stream in streams.blind} == WATCHED.keys()

    async def answered():
        next(iter(streams.watches))

    await asyncio.create_task(answered(), name="watcher for pods.v1@None")
    assert {stream.kind for stream in streams.blind} == WATCHED.keys() - {"Pod"}
