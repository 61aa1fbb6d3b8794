"""The engine benchmark gives no figures for engines that did other work than asked, or counted where they should not."""

import pytest

from eldr_bench.engine_child import Proof, Work
from eldr_bench.proof import Unproven

PREFILL = Work("kv_producer", 1, 128, 1)
DECODE = Work("kv_consumer", 2, 16, 4)


def answer(work, *, signatures=(), records=(), **more):
    done = {
        "seconds": [1.0] * work.tokens,
        "generated": named([0] * work.tokens for _ in range(work.requests)),
    }
    counted = {"signatures": named(counts(signatures)), "records": counts(records)}
    return done | counted | more


def named(values):
    return {f"request-{number}": value for number, value in enumerate(values)}


def counts(said):
    return [{"tokens": tokens, "exact": exact} for tokens, exact in said]


def test_engines_that_count_where_the_plugin_is_pass():
    for role, work in (("kv_producer", PREFILL), ("kv_consumer", DECODE)):
        bare = Proof(role, counting=False)
        assert (
            bare.begin({"connector": False, "scheduler": "synchronous", "runner": "V1"}) == "V1, synchronous"
        )
        bare.hold(work, answer(work))
    Proof("kv_producer", counting=True).hold(PREFILL, answer(PREFILL, signatures=[[128, True]]))
    late = Proof("kv_consumer", counting=True)
    late.hold(DECODE, answer(DECODE))
    late.hold(DECODE, answer(DECODE, records=[[3, True]] * 2))
    at_once = Proof("kv_consumer", counting=True)
    for _ in range(2):
        at_once.hold(DECODE, answer(DECODE, records=[[3, True]] * 2))


def test_steps_that_are_scheduled_ahead_bring_their_tokens_later():
    proof = Proof("kv_consumer", counting=False)
    proof.begin({"connector": False, "scheduler": "asynchronous", "runner": "V2"})
    proof.hold(DECODE, answer(DECODE, seconds=[1.0] * 5))
    with pytest.raises(Unproven, match="took 3 steps"):
        proof.hold(DECODE, answer(DECODE, seconds=[1.0] * 3))


@pytest.mark.parametrize(
    ("role", "counting", "wrong", "why"),
    [
        ("kv_producer", True, {}, "signed"),
        ("kv_producer", True, {"signatures": [[128, False]]}, "signed"),
        ("kv_producer", False, {"seconds": [1.0, 1.0]}, "took 2 steps"),
        ("kv_producer", False, {"generated": {}}, r"generated \[\]"),
        ("kv_producer", True, {"signatures": [[128, True]], "records": [[0, True]]}, "activation records"),
        ("kv_consumer", False, {"records": [[3, True]] * 2}, "activation records"),
        ("kv_consumer", True, {"records": [[2, True]] * 2}, "activation records"),
    ],
)
def test_an_engine_that_did_otherwise_is_told(role, counting, wrong, why):
    work = PREFILL if role == "kv_producer" else DECODE
    with pytest.raises(Unproven, match=why):
        Proof(role, counting=counting).hold(work, answer(work, **wrong))


def test_an_engine_without_the_plugin_is_not_the_one_with_it():
    with pytest.raises(Unproven, match="connector"):
        Proof("kv_producer", counting=True).begin({"connector": False})
