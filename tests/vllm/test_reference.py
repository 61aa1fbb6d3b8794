"""The reference against brute force, and the models that it serves; needs the environment of hack/vllm/install."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eldr_tiny_moe.client import MODEL, ReferenceClient, Tie
from tests.vllm.models import written

FAMILIES = {
    "qwen3moe": (4, 32),
    "gptoss": (4, 16),
    "gemma4": (6, 16),
    "glm4moe": (3, 32),
    "deepseekv3": (3, 32),
    "qwen3next": (4, 32),
    "olmoe": (4, 32),
}
MORE = {"deepseekv3", "qwen3next", "olmoe"}
"""Of ``make e2e-vllm-all``."""
PATIENCE = 240.0
pytestmark = pytest.mark.timeout(600)

# An independent way to the same counts: what the experts of the model are really called with.
BRUTE_FORCE = """
import json, sys
import torch
from transformers import AutoModelForCausalLM
folder, prompt, generated = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
used = []
def seen(module, inputs):
    used[-1].append(next(x for x in inputs if not x.is_floating_point()).reshape(1, -1).clone())
for name, module in model.named_modules():
    if name.endswith(".experts"):
        module.register_forward_pre_hook(seen)
n_experts = int(sys.argv[4])
steps = [[i] for i in generated[:-1]]
past = None
with torch.inference_mode():
    for ids in [prompt, *steps]:
        used.append([])
        past = model(input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True).past_key_values
def count(rows):
    return [torch.bincount(torch.cat(layer, 1)[0], minlength=n_experts).tolist() for layer in zip(*rows)]
print(json.dumps([count(used[:1]), count(used[1:])]))
"""

# Scores that rounding moves by less than half the tolerance: where a choice changes, it is by a near tie, and exactly by that.
# Two at once, of groups and of experts, are not named: where scores are this coarse, they are some in a thousand.


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(family, marks=pytest.mark.long if family in MORE else ()) for family in sorted(FAMILIES)
    ],
)
def variant(request, environment: Path, tmp_path_factory) -> tuple[str, Path]:
    return request.param, written(environment, request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def reference(variant: tuple[str, Path], environment: Path) -> Iterator[ReferenceClient]:
    with ReferenceClient(environment, variant[1], patience=PATIENCE) as client:
        yield client


def tokens(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4096) for _ in range(n)]


def brute_force(
    environment: Path, model: Path, prompt: list[int], generated: list[int], experts: int
) -> list:
    done = subprocess.run(
        [
            environment / "bin" / "python",
            "-c",
            BRUTE_FORCE,
            model,
            json.dumps(prompt),
            json.dumps(generated),
            str(experts),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_counts_are_those_of_the_experts_that_ran(
    variant, reference: ReferenceClient, environment: Path
) -> None:
    family, folder = variant
    assert (reference.layers, reference.experts) == FAMILIES[family]
    prompt, generated = tokens(150), tokens(9, seed=1)
    answer = reference.ask(prompt, generated)
    prefill, decode = brute_force(environment, folder, prompt, generated, reference.experts)
    assert not answer.ties, "a near tie proves nothing; take another seed"
    assert answer.prefill == prefill
    assert answer.decode == decode
    assert {sum(layer) for layer in answer.prefill} == {150 * reference.top_k}
    assert {sum(layer) for layer in answer.decode} == {8 * reference.top_k}


def test_a_choice_that_is_made_otherwise_is_followed(reference: ReferenceClient) -> None:
    """Of one token's layers: those before stay, its own exchanges two experts, and what it computes is another."""
    prompt, layer = tokens(40), 1
    alone, before = (reference.ask(prompt[:n], positions=[n - 1]).prefill for n in (40, 39))
    last = [one - other for one, other in zip(alone[layer], before[layer], strict=True)]
    swap = Tie(39, layer, [last.index(1)], [last.index(0)], 0.0)
    answer = reference.ask(prompt, positions=[39], swaps=[swap])
    assert answer.prefill[:layer] == alone[:layer]
    wanted = list(alone[layer])
    wanted[last.index(1)] -= 1
    wanted[last.index(0)] += 1
    assert answer.prefill[layer] == wanted
    stock = reference.ask(prompt, positions=[39])
    assert answer.next != stock.next
    assert answer.router_gaps[:39] == stock.router_gaps[:39]
    assert answer.router_gaps[39] != stock.router_gaps[39]


def test_near_ties_are_the_choices_whose_experts_exchange_within_the_tolerance(
    variant, reference: ReferenceClient
) -> None:
    found = [
        (answer, tie)
        for seed in range(8)
        for answer in [reference.ask(tokens(600, seed))]
        for tie in answer.ties
    ]
    for answer, tie in found:
        assert answer.router_gaps[tie.position][tie.layer] <= tie.gap < 0.01
    assert (variant[0] != "qwen3next") <= len(found) < 8 * 600 * reference.layers / 200


@pytest.fixture(scope="session")
def trained(environment: Path) -> Iterator[ReferenceClient]:
    with ReferenceClient(environment, MODEL, patience=PATIENCE) as client:
        yield client


def test_next_tokens_are_greedy_and_say_how_clear_they_are(trained: ReferenceClient) -> None:
    text = tokens(40)
    for _ in range(4):
        text.append(trained.ask(text, positions=[len(text) - 1]).next[0].best)
    at_once = trained.ask(text[:40], text[40:], positions=range(39, 43))
    assert [token.best for token in at_once.next] == text[40:]
    assert all(token.gap > token.tolerance > 0 and token.second != token.best for token in at_once.next)


def test_one_generated_token_is_never_fed(trained: ReferenceClient) -> None:
    answer = trained.ask(tokens(20), [5])
    assert answer.decode == trained.ask(tokens(20)).decode == [[0] * 64] * 4
    assert len(answer.router_gaps) == 20
