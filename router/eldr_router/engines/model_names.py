"""Names of models: aliases of one, and adapters (LoRA). Pure."""

from __future__ import annotations

from collections import OrderedDict

_LONGEST = 256
_MOST = 1024


class ModelNames:
    """Learns from engines' answers.

    vLLM answers by the first name of the served model, whichever of its names the request gives, or none. For an adapter it
    answers by the adapter's name. A name that no engine has answered yet means a model of its own: to take two models for one
    would be worse than the reverse.

    Parameters
    ----------
    most : int
        Other names to remember; clients may ask for any.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._first: OrderedDict[str, str] = OrderedDict()

    def of(self, asked: str) -> str:
        """Return the first name of the requested model; empty without one."""
        return self._first.get(asked, asked)

    def observe(self, asked: str, answered: object) -> None:
        """Record the model that an engine has answered by."""
        if not isinstance(answered, str) or not 0 < len(answered) <= _LONGEST:
            return
        self._first.pop(asked, None)
        if answered == asked:
            return
        self._first[asked] = answered
        if len(self._first) > self._most:
            self._first.popitem(last=False)
