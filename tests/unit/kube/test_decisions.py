"""Back-off, probes, quantities, images, path replacement."""

from __future__ import annotations

from pathlib import Path

import pytest

from eldr_kube.agent.addresses import Addresses
from eldr_kube.agent.images import Image, dump_images, load_images
from eldr_kube.agent.launch import Launch, substitute
from eldr_kube.agent.logs import tail_offset
from eldr_kube.agent.probes import Health, port_number
from eldr_kube.agent.resources import quantity, resource_value
from eldr_kube.agent.restarts import Backoff, restarts_after


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 137, True),
        ("Never", 1, False),
    ],
)
def test_restart_policy(policy, code: int, again: bool):
    assert restarts_after(policy, code) is again


def test_backoff_is_the_kubelet_s():
    backoff = Backoff()
    assert [backoff.after(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.after(601) == 0
    assert backoff.after(1) == 10


def test_health_needs_a_row():
    health = Health({"successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1}, eager=False)
    answers = [True, False, True, True, False, True, False, False, True, True]
    seen = [health.observe(answer, now) for now, answer in enumerate(answers)]
    assert seen == [None, None, None, True, True, True, True, False, False, True]


def test_eager_questions_cost_one_failure_per_period():
    health = Health({"periodSeconds": 10, "failureThreshold": 3}, eager=True)
    moments = []
    now = 0.0
    while health.observe(False, now) is None:
        moments.append(now)
        now += health.delay
    # Three failures ten seconds apart, as with a kubelet, although it was asked every half second.
    assert now == pytest.approx(20, abs=0.5)
    assert len(moments) > 30


def test_ports_by_name():
    container = {"name": "c", "ports": [{"name": "http", "containerPort": 80}]}
    assert [port_number(port, container) for port in (8, "9", "http")] == [8, 9, 80]
    with pytest.raises(ValueError, match="no port named 'grpc'"):
        port_number("grpc", container)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1500m", 1.5), ("2", 2), ("4Gi", 4 * 2**30), ("1k", 1000), ("1e3", 1000), ("0.5", 0.5)],
)
def test_quantities(text: str, value: float):
    assert float(quantity(text)) == value


def test_bad_quantity_is_named():
    with pytest.raises(ValueError, match="'4 GiB' is not a quantity"):
        quantity("4 GiB")


def test_resource_fields_round_up_and_fall_back_to_the_node():
    container = {"resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "1"}}}
    assert resource_value(container, {"resource": "limits.cpu"}) == "2"
    assert resource_value(container, {"resource": "limits.cpu", "divisor": "1m"}) == "1500"
    assert resource_value(container, {"resource": "limits.memory", "divisor": "1Mi"}) == "1024"
    assert resource_value(container, {"resource": "limits.amd.com/gpu"}) == "8"
    assert resource_value(container, {"resource": "requests.memory"}) == "0"


def test_first_of_several_image_maps_wins(tmp_path: Path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    own = Image(entrypoint=("a", "b"), path=("/p",), env={"A": "1"}, workdir="/w", keep=("/k",), root="/r")
    dump_images({"vllm/*": own, "*": Image()}, first)
    second.write_text("'vllm/*': {entrypoint: [other]}\n")
    assert load_images(first, second).find("vllm/vllm-openai:1") == own
    assert load_images(first, second).find("ghcr.io/eldr/eldr:0.1.0") == Image()
    assert load_images(second, first).find("vllm/vllm-openai:1").entrypoint == ("other",)


def test_paths_are_replaced_whole(tmp_path: Path):
    launch = Launch(
        command=["cat", "/etc/eldr/routing.json", "--dir=/etc/eldr", "/etc/eldritch", "/x/etc/eldr"],
        env={"A": "/etc/eldr:/etc/eldr/deep/x"},
        workdir="/etc/eldr",
        mounts=[],
        log=tmp_path,
        folder=tmp_path,
    )
    done = substitute(launch, {"/etc/eldr/": "/v/1", "/etc/eldr/deep": "/v/2"})
    assert done.command == ["cat", "/v/1/routing.json", "--dir=/v/1", "/etc/eldritch", "/x/etc/eldr"]
    assert done.env == {"A": "/v/1:/v/2/x"}
    assert done.workdir == "/v/1"


def test_addresses_are_unique_between_agents_and_pods():
    first, second = Addresses(), Addresses()
    try:
        taken = [first.take() for _ in range(300)]
        assert len(set(taken)) == 300
        assert not set(taken) & {second.take() for _ in range(300)}
        first.give_back(taken[0])
        # An address comes round last, so that no client meets a stranger where a pod was a moment ago.
        assert first.take() != taken[0]
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("content", "lines", "rest"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"x" * 200_000 + b"\nlast\n", 1, b"last\n"),
    ],
)
def test_tail(tmp_path: Path, content: bytes, lines: int, rest: bytes):
    file = tmp_path / "log"
    file.write_bytes(content)
    assert content[tail_offset(file, lines) :] == rest
