"""Which engines may exchange KV, by the key in their pods' labels."""

import pytest

from eldr import contract
from eldr_operator.workloads import engines, kv
from eldr_operator.workloads.images import Images
from tests.unit.operator.builders import make_vllm

IMAGES = Images("own:1", "vllm:1")


def keys(cr, images=IMAGES):
    made = engines.prefill(cr, images), engines.decode(cr, images)
    return tuple(each["spec"]["template"]["metadata"]["labels"][contract.LABEL_KV] for each in made)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"decode": {"gpus": 4}},
        *(
            {"decode": {"args": args.split()}}
            for args in (
                "--block-size=64 --max-num-batched-tokens 4096",
                "--dtype=auto --kv-cache-dtype auto",
                "--no-disable-hybrid-kv-cache-manager",
                "--dtype=float16 --dtype=auto",
                '--speculative-config={"method":"ngram"}',
            )
        ),
        {"prefill": {"env": [{"name": "UCX_TLS", "value": "tcp"}]}},
        {"prefill": {"podTemplate": {"metadata": {"labels": {contract.LABEL_KV: "mine"}}}}},
        {"engine": {"args": ["--max-model-len=4096"]}},
    ],
)
def test_what_does_not_matter(change):
    assert set(keys(make_vllm(**change))) == set(keys(make_vllm()))


@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"args": args.split()}
            for args in (
                "--dtype=float16",
                "--dt float16",
                "--kv_cache_dtype=fp8",
                "--revision abc",
                "--attention-backend=TRITON_ATTN",
                "--disable-hybrid-kv-cache-manager",
                "--hf-overrides.num_hidden_layers=2",
                '--speculative-config={"method":"eagle3","model":"m"}',
                "--attention-config.backend=TRITON_ATTN",
                '-ac {"backend":"TRITON_ATTN"}',
                "--hf-config-path=/else",
                "--mamba-ssm-cache-dtype=float32",
            )
        ),
        *(
            {"env": [{"name": name, "value": "1"}]}
            for name in (
                "VLLM_ROCM_USE_AITER_MHA",
                "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT",
                "VLLM_MLA_DISABLE",
            )
        ),
        {"podTemplate": {"spec": {"containers": [{"name": "engine", "image": "mine"}]}}},
    ],
)
def test_what_does(fields):
    both = keys(make_vllm(prefill=fields, decode=fields))
    one = keys(make_vllm(decode=fields))
    plain = keys(make_vllm())
    assert both[0] == both[1] != plain[0]
    assert one == (plain[0], both[1])


def test_images_matter():
    assert keys(make_vllm(), Images("own:2", "vllm:1")) == keys(make_vllm())
    assert keys(make_vllm(), Images("own:1", "vllm:2")) != keys(make_vllm())
    assert keys(make_vllm(engine={"image": "vllm:1"})) == keys(make_vllm())


def pod(name, role, key, *, is_ready=True, **metadata):
    labels = {contract.LABEL_ROLE: role} | ({contract.LABEL_KV: key} if key else {})
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    return {"metadata": {"name": name, "labels": labels, **metadata}, "status": {"conditions": conditions}}


PREFILL, DECODE = pod("q", "prefill", "a"), pod("d", "decode", "b")


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([PREFILL, pod("d", "decode", "a")], []),
        ([PREFILL, pod("d1", "decode", "b"), pod("d0", "decode", "b")], ["d0", "d1"]),
        ([PREFILL, pod("d", "decode", "b", is_ready=False)], []),
        ([pod("p", "prefill", "b", is_ready=False), PREFILL, DECODE], ["d"]),
        ([pod("p", "prefill", "b", deletionTimestamp="t"), PREFILL, DECODE], ["d"]),
        ([pod("p", "prefill", ""), DECODE], []),
        ([DECODE], []),
        ([pod("r", "router", ""), {"metadata": {"name": "x"}}], []),
    ],
)
def test_decode_engines_that_no_prefill_engine_may_serve(pods, expected):
    assert kv.unpaired(pods) == expected


def runs(name, image_id, key="k", container="engine", phase="Running", **metadata):
    made = pod(name, "decode", key, **metadata)
    made["status"]["phase"] = phase
    made["status"]["containerStatuses"] = [{"name": container, "imageID": image_id}]
    return made


A, B = "docker.io/v@sha256:aaaa", "docker.io/v@sha256:bbbb"
FIRST = runs("p", A)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([runs("d", B), runs("e", B)], "sha256:aaaa in p; sha256:bbbb in d, e"),
        ([runs("d", "mirror.example/v@sha256:aaaa")], ""),
        ([runs("d", B, key="l")], ""),
        ([runs("d", B, deletionTimestamp="t")], ""),
        ([runs("d", B, phase="Failed"), runs("e", B, phase="Succeeded")], ""),  # evicted
        ([runs("d", B, container="router")], ""),
        ([runs("d", "sha256:bbbb"), runs("e", ""), runs("f", None), pod("g", "decode", "k")], ""),
        ([runs("d", B, key=""), runs("e", A, key="")], ""),
    ],
)
def test_engines_that_run_different_images_by_one_name(others, expected):
    assert kv.mixed_images([FIRST, *others]) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--attention-backend=FLASHINFER", "--attention-backend flashinfer"),
        ("--attention-backend=FLASHINFER", "--attention-config.backend=FLASHINFER"),
        ("--attention-backend=FLASHINFER", '-ac={"backend":"FLASHINFER"}'),
        ('--hf-overrides={"a":1,"b":2}', '--hf-overrides={"b":2,"a":1}'),
        ('--hf-overrides={"a":1,"b":2}', "--hf-overrides.a=1 --hf-overrides.b=2"),
        ("--dtype=half", "--dtype=float16"),
        ("--kv-cache-dtype=fp8", "--kv-cache-dtype=fp8_e4m3"),
    ],
)
def test_another_way_to_write_the_same(one, other):
    prefill, decode = keys(make_vllm(prefill={"args": one.split()}, decode={"args": other.split()}))
    assert prefill == decode
    assert prefill != keys(make_vllm())[0]
