"""Events are asked for only where they can say something."""

import pytest

from eldr_operator.kube import refusals


class Events:
    """An API server's, and how often they were asked for."""

    def __init__(self):
        self.asked = 0

    async def list(self, kind, namespace, *, fields):
        self.asked += 1
        assert (kind, namespace) == ("Event", "n")
        assert fields == "involvedObject.uid=u,reason=FailedCreate"
        return [{"message": "pod b: no quota"}, {"message": "pod a: no quota"}], "1"


def stateful_set(status, replicas=2):
    return {
        "metadata": {"namespace": "n", "uid": "u", "generation": 3},
        "spec": {"replicas": replicas},
        "status": status,
    }


@pytest.mark.parametrize(
    "live",
    [
        None,
        stateful_set({}),
        stateful_set({"observedGeneration": 2, "replicas": 1}),
        stateful_set({"observedGeneration": 3, "replicas": 2}),
        stateful_set({"observedGeneration": 3}, replicas=0),
    ],
    ids=["none", "unseen", "seen as it was", "complete", "none wanted"],
)
async def test_nothing_is_asked(live):
    events = Events()
    assert await refusals.of_stateful_set(events, live) == ""
    assert not events.asked


async def test_what_its_controller_could_not_create_is_told():
    events = Events()
    live = stateful_set({"observedGeneration": 3, "replicas": 1})
    assert await refusals.of_stateful_set(events, live) == "pod a: no quota"
    assert events.asked == 1
