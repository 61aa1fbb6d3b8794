"""What needs a model, given by the test instead: the routing and the slots of a step."""

from __future__ import annotations

from typing import ClassVar

import torch

LAYERS = 2


class Capture:
    """In place of ``RoutingCapture``: tests set ``ids``, of shape (tokens, layers, top k)."""

    n_layers: ClassVar[int] = LAYERS
    device: ClassVar[torch.device] = torch.device("cpu")
    ids: ClassVar[torch.Tensor]

    def __init__(self, *_: object) -> None:
        pass

    def begin(self) -> None:
        """Leave everything as it is."""

    def expert_ids(self, n_tokens: int) -> torch.Tensor:
        """Return the routing of the first tokens."""
        return self.ids[:n_tokens]


class Slots:
    """In place of ``StepSlots``: tests set ``slots``, None for a step that does not tell."""

    slots: ClassVar[torch.Tensor | None] = None

    def __init__(self, *_: object) -> None:
        pass

    def bind(self) -> None:
        """Leave everything as it is."""

    def take(self) -> torch.Tensor | None:
        """Return the slots."""
        return self.slots
