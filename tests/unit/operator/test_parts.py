"""Models, validation, queue, controller, reading routers."""

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import ClassVar, NamedTuple

import pytest

from eldr.contract import KIND_DEPLOYMENT, KIND_FIT, LABEL_DEPLOYMENT
from eldr_operator.controller import Controller
from eldr_operator.errors import ApiUnavailableError, InvalidResourceError, OperatorError
from eldr_operator.kube.api import Api
from eldr_operator.kube.cache import WATCHED, Cache
from eldr_operator.kube.queue import REST_SECONDS, WorkQueue
from eldr_operator.kube.repeats import Repeats
from eldr_operator.kube.streams import Streams
from eldr_operator.locality import routers
from eldr_operator.locality.router_view import RouterPod
from eldr_operator.manager import Manager
from eldr_operator.metrics import Metrics
from eldr_operator.startup import check_resources
from eldr_operator.validation.spec import problems
from tests.unit.operator.builders import NOW, STATE, make_cr


def test_unreadable_resources_name_field_and_value():
    with pytest.raises(InvalidResourceError, match=r"spec\.decode\.replicas: 'many': .*valid integer"):
        make_cr(decode={"replicas": "many"})


@pytest.mark.parametrize(
    ("refit", "expected"),
    [
        ({}, []),
        ({"schedule": "*/5 0-6 * * MON-FRI"}, []),
        ({"schedule": "@daily"}, ["spec.refit.schedule: '@daily': 1 fields; write five cron fields"]),
        ({"schedule": "60 * * * *"}, ["Bad minute; write five cron fields"]),
        ({"schedule": "0 0 31 2 *"}, ["spec.refit.schedule: '0 0 31 2 *'"]),
        (
            {"timeZone": "Europe/Atlantis"},
            ["spec.refit.timeZone: 'Europe/Atlantis': unknown time zone; write an IANA"],
        ),
        ({"timeZone": "../etc/passwd"}, ["spec.refit.timeZone"]),
        (
            {"drift": {"maintenanceWindow": {"schedule": "0 1 31 2 *", "timeZone": "Mars/Olympus"}}},
            ["maintenanceWindow.schedule: '0 1 31 2 *'", "maintenanceWindow.timeZone: 'Mars/Olympus'"],
        ),
    ],
)
def test_schedules(refit, expected):
    found = [str(problem) for problem in problems(make_cr(refit=refit))]
    assert len(found) == len(expected)
    assert all(text in problem for text, problem in zip(expected, found, strict=True))


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"containers": [{"name": "engine"}]}}, None),
        ({"status": {}}, "status"),
        ({"metadata": None}, "metadata"),
        ({"spec": {"containers": [{"image": "i"}]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "e", "env": [{"value": "v"}]}]}}, "spec.containers[0].env[0]"),
    ],
)
def test_pod_templates(template, field):
    found = [problem.field for problem in problems(make_cr(prefill={"podTemplate": template}))]
    assert found == ([f"spec.prefill.podTemplate.{field}"] if field else [])


async def test_queue_gives_each_key_once_and_again_after_a_wake_in_between():
    clock = [0.0]
    queue = WorkQueue(lambda: clock[0])
    for _ in range(3):
        queue.wake(("n", "a"))
    assert await queue.take() == ("n", "a")
    queue.wake(("n", "a"))
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done(), "a key in work is not given out twice"
    queue.done(("n", "a"))
    assert await waiting == ("n", "a")
    queue.done(("n", "a"))
    assert repr(queue) == "<WorkQueue due=0 busy=0>"


async def test_a_burst_of_changes_is_one_pass_after_the_key_has_rested():
    clock, key = [0.0], ("n", "a")
    queue = WorkQueue(lambda: clock[0])
    queue.wake_rested(key)
    assert await queue.take() == key  # the first one at once
    for clock[0] in (0.1, 0.2, 0.3):
        queue.wake_rested(key)
    queue.done(key)
    assert queue.longest_wait() == pytest.approx(-REST_SECONDS)
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.wake(key)  # what somebody asks for does not wait
    assert await waiting == key
    queue.done(key)
    assert repr(queue) == "<WorkQueue due=0 busy=0>"
    clock[0] += 2 * REST_SECONDS
    queue.wake_rested(key)
    assert queue.longest_wait() == 0
    assert await queue.take() == key


async def test_queue_keeps_the_earlier_time():
    clock = [0.0]
    queue = WorkQueue(lambda: clock[0])
    queue.wake(("n", "late"), 10)
    queue.wake(("n", "late"), 20)
    queue.wake(("n", "soon"), 5)
    clock[0] = 10.0
    assert [await queue.take(), await queue.take()] == [("n", "soon"), ("n", "late")]


async def test_between_two_passes_that_await_nothing_the_event_loop_serves_others():
    passes, most = [0], [0]

    async def reconcile(*_):
        passes[0] += 1

    made = controller(reconcile)
    for number in range(50):
        made.queue.wake(("n", f"x{number}"))
    running = asyncio.create_task(made.run())
    while passes[0] < 50:
        before = passes[0]
        await asyncio.sleep(0)
        most[0] = max(most[0], passes[0] - before)
    running.cancel()
    assert most == [1]


class Scripted:
    """Stands for the reconciler: fails as told, then succeeds."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.calls = set()
        self.done = asyncio.Event()

    async def reconcile(self, namespace, name):
        self.calls.add((namespace, name))
        if self.failures:
            raise self.failures.pop(0)
        self.done.set()


class Lists:
    """Stands for the API: one deployment, one fit of a deployment that does not exist."""

    async def list(self, kind, namespace, *, labels="", keep=None, came=None):
        if kind not in {KIND_DEPLOYMENT, KIND_FIT}:
            return [], 7
        metadata = {"namespace": "ns", "name": "x", "uid": f"{kind}-uid", "resourceVersion": "3"}
        return [{"metadata": metadata, "spec": {"deploymentRef": {"name": "missing"}}}], 7


class AllOurs:
    """Stands for the Leases of namespaces."""

    elsewhere: ClassVar[dict] = {}

    async def run(self):
        await asyncio.Event().wait()


class Operator(NamedTuple):
    manager: Manager
    controller: Controller


def controller(reconcile, name="pods", kinds=WATCHED, own=(), metrics=None, monotonic=time.monotonic):
    queue = WorkQueue(monotonic)
    return Controller(
        name, reconcile, kinds, own, queue=queue, metrics=metrics or Metrics(), monotonic=monotonic
    )


def operator(api=None, reconciler=None, controllers=(), namespaces=(), **options):
    acts = asyncio.Event()
    acts.set()
    options = {"cache": Cache(), "metrics": Metrics(), "monotonic": time.monotonic, "acts": acts} | options
    shared = {name: options[name] for name in ("metrics", "monotonic")}
    made = controllers or [controller((reconciler or Scripted()).reconcile, **shared)]
    streams = Streams(api or Lists(), options["cache"], namespaces)
    options = {"resync_seconds": 60.0, "streams": streams, "served": AllOurs()} | options
    return Operator(Manager(made, **options), made[0])


@asynccontextmanager
async def running(made):
    task = asyncio.create_task(made.run())
    async with asyncio.timeout(30):
        yield
    task.cancel()


async def test_lists_of_many_namespaces_that_take_long_are_no_reason_to_restart():
    """Each request takes fifteen seconds: that is long for all, but the resync is at work."""
    now, names, said = [0.0], tuple(f"n{number}" for number in range(40)), set()

    class Slow:
        async def list(self, *_, **__):
            now[0] += 15.0
            said.add(made.stuck())
            raise ApiUnavailableError("no answer")

    made = operator(Slow(), namespaces=names, monotonic=lambda: now[0]).manager
    async with running(made):
        await made._listed.wait()
    assert now[0] > 1000
    assert said == {""}


async def test_a_list_of_many_pages_that_takes_long_is_no_reason_to_restart_and_one_that_hangs_is():
    now, said, pages = [0.0], [], 20

    class Paged(Api):
        async def request(self, method, url, **_):
            now[0] += 15.0
            said.append(made.stuck())
            more = "next" if "pods" in url and len(said) < pages else ""
            return {"items": [], "metadata": {"resourceVersion": "7", "continue": more}}

    made = operator(Paged(None), monotonic=lambda: now[0]).manager
    async with running(made):
        await made._listed.wait()
    assert (len(said) >= pages, {*said}) == (True, {""})
    now[0] += 121.0
    assert made.stuck() == "no resync for 61 s beyond its interval"


async def test_an_operator_that_waits_for_another_one_reads_and_does_nothing():
    now, acts, reconciler = [0.0], asyncio.Event(), Scripted()
    made = operator(reconciler=reconciler, acts=acts, monotonic=lambda: now[0]).manager
    async with running(made):
        await made._listed.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        now[0] = 10000.0
        assert not reconciler.calls
        assert made.not_ready() == ""
        acts.set()
        await reconciler.done.wait()


async def test_resync_wakes_deployments_and_orphaned_fits():
    reconciler = Scripted()
    made = operator(reconciler=reconciler).manager
    async with running(made):
        while len(reconciler.calls) < 2:
            await asyncio.sleep(0.01)
    assert reconciler.calls == {("ns", "x"), ("ns", "missing")}
    assert (made.stuck(), made.not_ready()) == ("", "")


async def test_resyncs_are_spread_over_their_period_after_the_first():
    """What the first list finds is due at once, and afterwards each deployment at a time of its own."""
    now, count = [0.0], 200

    class Many:
        async def list(self, kind, *_, **__):
            found = range(count) if kind == KIND_DEPLOYMENT else ()
            metadata = {"namespace": "ns", "resourceVersion": "3"}
            return [{"metadata": metadata | {"name": f"x{one}", "uid": f"u{one}"}} for one in found], 7

    made, found = operator(Many(), acts=asyncio.Event(), monotonic=lambda: now[0])
    for due_now, due_later in ((count, count), (0, 0)):
        resync = asyncio.create_task(made._resync())
        made._listed.clear()
        await made._listed.wait()
        await asyncio.sleep(0)
        resync.cancel()
        due = sorted(found.queue._due.values())
        assert sum(at <= now[0] for at in due) == due_now
        for at in due[:due_later]:
            now[0] = max(now[0], at)
            found.queue.done(await found.queue.take())
    gaps = [after - before for before, after in itertools.pairwise([0.0, *due, 60.0])]
    assert len(due) == count
    assert max(gaps) < 60.0 / 8


def live(version="5", **labels):
    metadata = {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": version}
    return {"metadata": metadata | {"labels": labels}}


OURS = {LABEL_DEPLOYMENT: "x"}


async def test_a_change_wakes_only_the_controllers_that_it_concerns():
    controllers = [controller(Scripted().reconcile, name, {name}) for name in ("Pod", "Job")]
    operator(controllers=controllers).manager.changed("Pod", live(**OURS), is_gone=False)
    assert [bool(each.queue._keys()) for each in controllers] == [True, False]


async def test_a_pass_knows_what_it_has_written_itself():
    cache = Cache()
    writes, follows = (
        controller(Scripted().reconcile, name, {"Role"}, own) for name, own in (("a", {"Role"}), ("b", ()))
    )
    made = operator(cache=cache, controllers=[writes, follows]).manager

    def due() -> list[bool]:
        return [bool(each.queue._keys()) for each in (writes, follows)]

    cache.put("Role", live("5", **OURS))  # as a write does
    made.changed("Role", live("5", **OURS), is_gone=False)
    assert due() == [False, True], "who writes it knows it, who builds on it does not"
    made.changed("Role", live("6", **OURS), is_gone=False)
    assert due() == [True, True], "somebody else has changed it"
    await writes.queue.take()
    writes.queue.done(("n", "x"))
    made.changed("Role", live("6", **OURS), is_gone=True)
    assert due() == [True, True], "it is gone"


async def test_failures_are_retried_and_counted(caplog):
    group = ExceptionGroup("g", [ApiUnavailableError("no answer"), TimeoutError()])
    reconciler, metrics = Scripted(group, RuntimeError("a bug")), Metrics()
    made = controller(reconciler.reconcile, metrics=metrics)
    for _ in range(3):
        await made._one(("ns", "x"))
    for result in ("unavailable", "error", "success"):
        labels = {"controller": "pods", "result": result}
        assert metrics.registry.get_sample_value("eldr_operator_reconcile_total", labels) == 1
    assert "no answer; TimeoutError; again in 0.5 s" in caplog.text
    assert "a bug" in caplog.text


async def test_a_stuck_resync_and_a_pass_without_end_are_noticed():
    clock = [0.0]
    made = operator(monotonic=lambda: clock[0], resync_seconds=10.0).manager
    clock[0] = 70.0
    assert made.stuck() == ""
    clock[0] = 71.0
    assert made.stuck() == "no resync for 61 s beyond its interval"
    made, found = operator(monotonic=lambda: clock[0], resync_seconds=3600.0)
    found.queue.wake(("n", "x"))
    await found.queue.take()
    clock[0] += 121.0
    assert made.stuck() == "a pass does not end after 121 s"
    found.queue.done(("n", "x"))
    assert made.stuck() == ""


async def test_an_operator_is_not_ready_where_work_waits_and_no_pass_ends():
    clock = [0.0]
    made, found = operator(monotonic=lambda: clock[0], resync_seconds=3600.0)
    await made._streams.list(everything=True)
    clock[0] = 500.0
    assert made.not_ready() == "", "idle"
    found.queue.wake(("n", "x"), 30.0)
    clock[0] = 589.0
    assert made.not_ready() == ""
    clock[0] = 591.0
    assert made.not_ready() == "no pass over pods has ended for 61 s, though one is due"


async def test_routers_that_do_not_answer_are_views_with_a_problem():
    answers = {
        "http://[fd00::1]:9100/eldr/v1/state": json.dumps(STATE | {"samples": 7}).encode(),
        "http://10.0.0.2:9100/eldr/v1/state": routers.StatusError(401),
        "http://10.0.0.3:9100/eldr/v1/state": ConnectionRefusedError("refused on port 12345"),
        "http://10.0.0.4:9100/eldr/v1/state": b'{"v": 2}',
    }

    async def fetch(url: str, token: str) -> bytes:
        assert token == "secret"
        if isinstance(answers[url], bytes):
            return answers[url]
        raise answers[url]

    pods = [RouterPod(address, address, None) for address in ("fd00::1", "10.0.0.2", "10.0.0.3", "10.0.0.4")]
    views = await routers.look(fetch, pods, "secret")
    assert [(view.problem, view.samples) for view in views] == [
        ("", 7),
        ("answers 401", 0),
        ("does not answer (ConnectionRefusedError)", 0),
        ("answers what this operator cannot read; are the versions the same?", 0),
    ]


@pytest.mark.parametrize("served", [["eldrfits"], []])
async def test_it_refuses_to_start_where_the_resources_are_not_served(served):
    class Bare(Api):
        async def request(self, method, url, **_):
            return {"resources": [{"name": name} for name in served]}

    with pytest.raises(OperatorError, match=r"does not serve eldrdeployments\.eldr\.dev.*; install"):
        await check_resources(Bare(None))


def test_what_happens_again_and_again_is_told_once_an_hour_with_how_often():
    repeats = Repeats()
    told = [repeats.count("a", NOW + timedelta(minutes=5 * n)) for n in range(26)]
    assert [(n, count) for n, count in enumerate(told) if count] == [(0, 1), (12, 12), (24, 12)]
    assert repeats.count("b", NOW) == 1
    assert repeats.count("a", NOW + timedelta(hours=9)) == 1, "what ended long ago is new"


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_that_comes_with_a_change_ends_who_waits_for_work(turns):
    queue = WorkQueue(asyncio.get_running_loop().time)
    queue.wake(("n", "x"), 600.0)
    waits = asyncio.create_task(queue.take())
    for _ in range(5):
        await asyncio.sleep(0)
    queue.wake(("n", "y"), 300.0)
    for _ in range(turns):
        await asyncio.sleep(0)
    waits.cancel()
    done, _ = await asyncio.wait([waits], timeout=1.0)
    assert done
