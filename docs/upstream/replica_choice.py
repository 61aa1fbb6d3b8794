"""How many experts the fullest rank activates: without replicas, with vLLM 0.32's choice of replicas, and with a choice that knows the whole step.

    python replica_choice.py        # NumPy is all it needs

Random routing, replicas of the experts used most, initial placement as EPLB's: greedy by load.
"""

import numpy as np

EXPERTS, TOP_K, RANKS, REDUNDANT, STEPS = 128, 8, 8, 64, 200
HASH = 2654435769  # eplb_map_to_physical_and_record


def placement(load: np.ndarray, redundant: int) -> np.ndarray:
    """Expert of each physical slot, shape (RANKS, slots): replicas of the heaviest, packed by load."""
    count = np.ones(EXPERTS, dtype=int)
    for _ in range(redundant):
        count[np.argmax(load / count)] += 1
    slots: list[list[int]] = [[] for _ in range(RANKS)]
    weight = [0.0] * RANKS
    replicas = sorted(
        ((load[e] / count[e], e) for e in range(EXPERTS) for _ in range(count[e])), reverse=True
    )
    for share, expert in replicas:
        free = [r for r in range(RANKS) if len(slots[r]) < (EXPERTS + redundant) // RANKS]
        rank = min(free, key=lambda r: (expert in slots[r], weight[r]))
        slots[rank].append(expert)
        weight[rank] += share
    return np.array(slots)


def holders(slots: np.ndarray) -> list[list[int]]:
    """Rank of each replica of each expert."""
    return [[r for r in range(RANKS) for slot in slots[r] if slot == e] for e in range(EXPERTS)]


def vllm(topk: np.ndarray, where: list[list[int]]) -> int:
    """Experts of the fullest rank with the hash of the token's index; every rank counts its own tokens from 0."""
    per_rank = len(topk) // RANKS
    used = set()
    for token, experts in enumerate(topk):
        hashed = (token % per_rank) * HASH % 2**32
        used |= {(where[e][hashed % len(where[e])], e, hashed % len(where[e])) for e in experts}
    return int(np.bincount([rank for rank, *_ in used], minlength=RANKS).max())


def whole_step(topk: np.ndarray, where: list[list[int]]) -> int:
    """The same with one replica per active expert, on its least loaded holder; experts with the fewest holders first."""
    load = [0] * RANKS
    for expert in sorted(set(topk.ravel().tolist()), key=lambda e: len(set(where[e]))):
        load[min(set(where[expert]), key=lambda r: (load[r], r))] += 1
    return max(load)


def main() -> None:
    rng = np.random.default_rng(0)
    popularity = rng.gamma(2.0, size=EXPERTS)
    plain, copies = (holders(placement(popularity, n)) for n in (0, REDUNDANT))
    print("tokens a step   none   vLLM's choice   whole step")
    for tokens in (16, 64, 256):
        scores = np.log(popularity) + rng.gumbel(size=(STEPS, tokens, EXPERTS))
        steps = np.argsort(-scores, axis=2)[:, :, :TOP_K]
        ways = ((whole_step, plain), (vllm, copies), (whole_step, copies))
        means = [np.mean([how(step, where) for step in steps]) for how, where in ways]
        print(f"{tokens:13d} {means[0]:6.1f} {means[1]:15.1f} {means[2]:12.1f}")


if __name__ == "__main__":
    main()
