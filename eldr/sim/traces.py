"""Captured expert activations, replayed by the simulated engines."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources

import numpy as np
import numpy.typing as npt

_TAG = re.compile(r"\[eldr record (\d{1,9})\]")
_LENGTH = re.compile(r"\[eldr tokens (\d{1,7})\]")


def tag(record: int) -> str:
    """Return the text that makes a prompt replay one record."""
    return f"[eldr record {record}]"


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """Activations of real prompts of a trained model; see ``data/README.md``.

    Attributes
    ----------
    prefill_counts : ndarray of uint16, shape (n_records, n_layers, n_experts)
    prompt_tokens : ndarray of uint16, shape (n_records,)
    decode_experts : ndarray of uint8, shape (n_records, n_steps, n_layers, top_k)
    kind : ndarray of uint8, shape (n_records,)
    kinds : tuple of str
        Names of the kinds of text.
    """

    prefill_counts: npt.NDArray[np.uint16]
    prompt_tokens: npt.NDArray[np.uint16]
    decode_experts: npt.NDArray[np.uint8]
    kind: npt.NDArray[np.uint8]
    kinds: tuple[str, ...]

    @property
    def n_layers(self) -> int:
        """Mixture-of-experts layers."""
        return int(self.prefill_counts.shape[1])

    @property
    def n_experts(self) -> int:
        """Experts per layer."""
        return int(self.prefill_counts.shape[2])

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return int(self.decode_experts.shape[3])

    def __len__(self) -> int:
        return len(self.prefill_counts)

    def record_of(self, prompt: str) -> int:
        """Return the record a prompt replays: its tag, else a hash of its text.

        The same on every engine, so that prefill and decode agree without talking.
        """
        match = _TAG.search(prompt)
        number = (
            int(match.group(1))
            if match
            else int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest())
        )
        return number % len(self)

    def tokens_of(self, prompt: str) -> int:
        """Return a prompt's length, by ``[eldr tokens N]`` or its record."""
        match = _LENGTH.search(prompt)
        return int(match.group(1)) if match else int(self.prompt_tokens[self.record_of(prompt)])

    def experts(self, record: int, step: int) -> npt.NDArray[np.uint8]:
        """Return the experts of a decode step, shape (n_layers, top_k).

        Steps repeat after the captured ones.
        """
        experts: npt.NDArray[np.uint8] = self.decode_experts[record, step % self.decode_experts.shape[1]]
        return experts

    def decode_counts(self, record: int, tokens: int) -> npt.NDArray[np.uint32]:
        """Return the counts of steps ``1..tokens``, beyond the prompt.

        Step 0 recomputes the prompt's last token and is not counted, as on a real engine.
        """
        steps = self.decode_experts[record, np.arange(1, tokens + 1) % self.decode_experts.shape[1]]
        counts = np.zeros((self.n_layers, self.n_experts), dtype=np.uint32)
        for layer in range(self.n_layers):
            counts[layer] = np.bincount(steps[:, layer].ravel(), minlength=self.n_experts)
        return counts

    def split(self, kinds: tuple[str, ...] | None = None) -> tuple[list[int], list[int]]:
        """Return disjoint records to fit and to evaluate, half of each kind.

        Raises
        ------
        ValueError
            If a kind is unknown; the message lists the known ones.
        """
        fitting: list[int] = []
        evaluation: list[int] = []
        for name in kinds or self.kinds:
            if name not in self.kinds:
                raise ValueError(f"kind {name!r}: known are {', '.join(self.kinds)}")
            members = np.flatnonzero(self.kind == self.kinds.index(name)).tolist()
            fitting += members[0::2]
            evaluation += members[1::2]
        return fitting, evaluation


def load() -> Traces:
    """Load the captured activations that come with the package."""
    source = resources.files("eldr.sim") / "data" / "activations.npz"
    with source.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        kinds = tuple(str(name) for name in arrays["kinds"])
        numbers = ("prefill_counts", "prompt_tokens", "decode_experts", "kind")
        return Traces(**{name: arrays[name] for name in numbers}, kinds=kinds)
