"""Arguments for vLLM that would break what the operator has set up, or make engines report wrong counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment

_SHORTEST_ABBREVIATION = len("--por")
"""vLLM takes any unambiguous beginning of a name; shorter ones are ambiguous, so it refuses them itself."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is refused, and what to do instead.

    Parameters
    ----------
    names : tuple of str
        The option and its short form.
    remedy : str
    harmless : str or None
        The one value that is let pass.
    """

    names: tuple[str, ...]
    remedy: str
    harmless: str | None = None

    def matches(self, name: str) -> bool:
        if name in self.names:
            return True
        is_long = name.startswith("--") and len(name) >= _SHORTEST_ABBREVIATION
        return is_long and any(known.startswith(name) for known in self.names)


_OWNED = "remove it: the operator sets it, and routers and engines find each other by it"
_SPECULATION = "remove it: rejected drafts would be counted"
_PARTS = (
    "remove it: no engine process would see every layer of every token; use gpus, which is tensor parallelism"
)
_RANKS = (
    "remove it: ranks that batch together count each for itself; use replicas, each is an engine of its own"
)
_MICRO_BATCHES = "remove it: micro-batches hide which token goes where"
_RULES = (
    _Rule(
        ("--kv-transfer-config",), "remove it: the operator sets it; the lease is spec.engine.leaseSeconds"
    ),
    _Rule(("--port",), _OWNED),
    _Rule(("--host",), _OWNED),
    _Rule(("--uds",), "remove it: routers reach engines by address and port"),
    _Rule(("--served-model-name",), "remove it: the name that clients send is spec.model.name"),
    _Rule(("--model",), "remove it: the model is spec.model.uri"),
    _Rule(("--pipeline-parallel-size", "-pp"), _PARTS, harmless="1"),
    _Rule(("--decode-context-parallel-size", "-dcp"), _PARTS, harmless="1"),
    _Rule(("--prefill-context-parallel-size", "-pcp"), _PARTS, harmless="1"),
    _Rule(("--data-parallel-size", "-dp"), _RANKS, harmless="1"),
    _Rule(("--enable-dbo",), _MICRO_BATCHES),
    _Rule(("--ubatch-size",), _MICRO_BATCHES, harmless="0"),
    _Rule(("--speculative-config", "-sc"), _SPECULATION),
    _Rule(("--spec-method",), _SPECULATION),
    _Rule(("--spec-model",), _SPECULATION),
    _Rule(("--spec-tokens",), _SPECULATION),
)
"""What the engine plugin refuses at its start stands here too: a condition is found sooner than a crashed container's log."""
_SHORT_FORMS = tuple(name for rule in _RULES for name in rule.names if not name.startswith("--"))


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused arguments of all three lists; only vLLM's are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    spec = cr.spec
    return [
        *_refused(spec.engine.args, "spec.engine.args"),
        *_refused(spec.prefill.args, "spec.prefill.args"),
        *_refused(spec.decode.args, "spec.decode.args"),
    ]


def _refused(args: Sequence[str], field: str) -> Iterator[Problem]:
    for index, argument in enumerate(args):
        name, value = _split(argument, args[index + 1] if index + 1 < len(args) else "")
        for rule in _RULES:
            if rule.matches(name) and value != rule.harmless:
                yield Problem("InvalidArgument", f"{field}[{index}]", argument, rule.remedy)
                break


def _split(argument: str, following: str) -> tuple[str, str]:
    """Return an option's name as vLLM reads it, and its value; an empty name for what is no option."""
    if not argument.startswith("-"):
        return "", ""
    name, equals, value = argument.partition("=")
    if name.startswith("--"):
        # Underscores stand for dashes, and --option.key sets one key of an option that takes JSON.
        return name.partition(".")[0].replace("_", "-"), value if equals else following
    for short in _SHORT_FORMS:
        if name.startswith(short) and name != short and not equals:
            return short, name.removeprefix(short)
    return name, value if equals else following
