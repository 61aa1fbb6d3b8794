"""Chats with images: signatures and activations of real engines equal transformers, which sees the same pixels.

A chunk is 64 tokens and a block 32, so that both end within images. ``make e2e-vllm-all ONLY=images`` runs it.
"""

import base64
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.router import router
from tests.vllm.comparison import check
from tests.vllm.engines import BLOCK, NAME, Setup
from tests.vllm.models import written
from tests.vllm.pair import Exchange
from tests.vllm.pools import Pools, serving

LEASE = 300
HITS = "vllm:prefix_cache_hits_total"
SOURCE = "vllm:prompt_tokens_by_source_total"
ASK = "Write a long story about a river, its two banks and all that lies between them, as one who was there would tell it. "
LIMITS = ("--limit-mm-per-prompt", '{"image": 3, "video": 0}', "--max-num-batched-tokens", "64")

pytestmark = pytest.mark.long

Part = dict[str, Any]


def text(said: str) -> Part:
    return {"type": "text", "text": said}


def image(seed: int, width: int, height: int) -> Part:
    """Return squares of random colours, in a PNG: of finer noise all tokens would be nearly the same."""
    colours = np.random.default_rng(seed).integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    pixels = colours.repeat(16, 0).repeat(16, 1)[:height, :width]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # each after the number of its filter: none
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


WIDE, TALL, ODD = (256, 192), (128, 416), (300, 100)
"""The last has no whole squares and is scaled by either family."""
TOKENS = {
    "qwen3vlmoe": {WIDE: 48, TALL: 52, ODD: 27},
    "gemma4-vision": {WIDE: 63, TALL: 60, ODD: 56},
}
"""Of an image."""
CACHES = {"qwen3vlmoe": "4M", "gemma4-vision": "8M"}


@pytest.fixture(scope="module", params=TOKENS)
def pools(request, environment, plugin, tmp_path_factory, near_ties):
    family = request.param
    folder = tmp_path_factory.mktemp(family)
    model = written(environment, family, folder / "model")
    setup = Setup(role="plain", lease=LEASE, plugin=plugin, model=model, max_len=1024, arguments=LIMITS)
    with serving(family, setup, (CACHES[family],) * 2, environment, folder, near_ties) as pools:
        yield pools


def ask(pools: Pools, *parts: Part, tokens: int = 12) -> Exchange:
    return pools.pair.ask(list(parts), tokens, chat=True)


def seen(exchange: Exchange) -> int:
    """Return how many tokens stand for images: those of the most frequent id."""
    return int(np.bincount(exchange.prompt).max())


@pytest.mark.parametrize("size", [WIDE, TALL, ODD])
def test_an_image(pools, size):
    exchange = ask(pools, text(ASK), image(1, *size), text("What is it?"))
    assert seen(exchange) == TOKENS[pools.family][size]
    check(pools, [exchange])


def test_several_images_and_one_image_twice(pools):
    first, second = image(2, *WIDE), image(3, *TALL)
    exchanges = [ask(pools, first, text("and"), second, text(ASK)), ask(pools, first, text(ASK), first)]
    wide, tall, _ = TOKENS[pools.family].values()
    assert [seen(exchange) for exchange in exchanges] == [wide + tall, 2 * wide]
    check(pools, exchanges)


def test_a_chat_is_found_again_and_one_with_another_image_is_not(pools):
    shown, other = image(4, *WIDE), image(5, *WIDE)
    hits = [pools.prefill.metric(HITS)]
    exchanges = []
    for parts in ((shown, text("What is it?")), (shown, text("What is it?")), (other, text("What is it?"))):
        exchanges.append(ask(pools, text(ASK), *parts))
        hits.append(pools.prefill.metric(HITS))
    exchanges.append(ask(pools, text(ASK), shown, text("Who made it, and when?")))
    hits.append(pools.prefill.metric(HITS))
    again, elsewhere, beginning = np.diff(hits)[1:]
    prompt = exchanges[0].prompt
    before = prompt.index(np.bincount(prompt).argmax())
    assert before > BLOCK
    assert again == (len(prompt) - 1) // BLOCK * BLOCK
    assert elsewhere <= before, "blocks of another image"
    if not pools.hybrid:  # sliding windows forget the beginning
        assert elsewhere == before // BLOCK * BLOCK
        assert beginning >= (before + TOKENS[pools.family][WIDE]) // BLOCK * BLOCK
    check(pools, exchanges)
    one, same, another, _ = (exchange.signature.counts for exchange in exchanges)
    assert exchanges[0].prompt == exchanges[2].prompt
    assert np.array_equal(one, same)
    assert not np.array_equal(one, another)


def test_chats_that_the_decode_engine_prefills_itself(pools):
    shown = image(7, *TALL)
    chats = [[text(ASK), shown, text(question)] for question in ("What is it?", "Who made it?")]
    exchanges = [pools.pair.ask_decode_only(chat, 12, chat=True) for chat in chats]
    check(pools, [*exchanges, ask(pools, *chats[0])])


def test_many_at_once(pools):
    rng = np.random.default_rng(8)
    chats = []
    for number in range(16):
        parts = [image(int(rng.integers(20, 26)), *(WIDE, TALL, ODD)[number % 3]) for _ in range(number % 4)]
        chats.append([text(ASK * int(rng.integers(0, 3)) + str(number)), *parts, text("What is it?")])
    with ThreadPoolExecutor(6) as pool:
        check(pools, list(pool.map(lambda chat: ask(pools, *chat, tokens=10), chats)))


def test_a_router_splits_such_a_chat(pools, tmp_path):
    parts = [text("By a router. " + ASK), image(9, *WIDE), text("What is it?")]
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 12,
        "temperature": 0,
        "ignore_eos": True,
    }
    engines = {"p": pools.prefill.url, "d": pools.decode.url}
    pulled = pools.decode.metric(SOURCE, source="external_kv_transfer")
    with router(tmp_path, engines, model=NAME, lease_seconds=LEASE) as served:
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=240).json()
        assert (served.counter("requests", outcome="ok"), served.counter("whole")) == (1, 0)
    assert pools.decode.metric(SOURCE, source="external_kv_transfer") >= pulled + BLOCK
    expected = httpx.post(f"{pools.prefill.url}/v1/chat/completions", json=body, timeout=240).json()
    assert answer["choices"][0]["message"]["content"] == expected["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_the_reference_sees(pools):
    """Else a comparison would say nothing: another image has other counts, and one of another size is refused."""
    prompt = ask(pools, text(ASK), image(1, *WIDE), text("What is it?")).prompt
    urls = [image(seed, *size)["image_url"]["url"] for seed, size in ((1, WIDE), (2, WIDE), (1, TALL))]
    one, another = (pools.reference.ask(prompt, images=[url]) for url in urls[:2])
    assert one.prefill != another.prefill
    with pytest.raises(ValueError, match="image"):
        pools.reference.ask(prompt, images=urls[2:])
