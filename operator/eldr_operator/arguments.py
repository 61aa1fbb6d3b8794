"""Arguments for vLLM that would break what the operator has set up, or make engines report wrong counts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eldr import contract
from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment

_SHORTEST_ABBREVIATION = len("--por")
"""vLLM takes any unambiguous beginning of a name; shorter ones are ambiguous, so it refuses them itself."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is refused, on which roles, and what to do instead.

    Parameters
    ----------
    names : tuple of str
        The option and its short form.
    remedy : str
    roles : tuple of str
    harmless : str or None
        The one value that is let pass.
    """

    names: tuple[str, ...]
    remedy: str
    roles: tuple[str, ...] = (contract.ROLE_PREFILL, contract.ROLE_DECODE)
    harmless: str | None = None

    def matches(self, name: str) -> bool:
        if name in self.names:
            return True
        is_long = name.startswith("--") and len(name) >= _SHORTEST_ABBREVIATION
        return is_long and any(known.startswith(name) for known in self.names)


_OWNED = "remove it: the operator sets it, and routers and engines find each other by it"
_SPECULATION = "remove it, or give it to decode only: rejected tokens of a prefill engine would be counted"
_RULES = (
    _Rule(
        ("--kv-transfer-config",),
        "remove it: the operator sets it; the lease is spec.engine.leaseSeconds",
    ),
    _Rule(("--port",), _OWNED),
    _Rule(("--host",), _OWNED),
    _Rule(("--uds",), "remove it: routers reach engines by address and port"),
    _Rule(("--served-model-name",), "remove it: the name that clients send is spec.model.name"),
    _Rule(("--model",), "remove it: the model is spec.model.uri"),
    _Rule(
        ("--pipeline-parallel-size", "-pp"),
        "remove it: each stage sees its own layers only, so signatures would be wrong; "
        "use gpus, which is tensor parallelism",
        harmless="1",
    ),
    *(
        _Rule(names, _SPECULATION, roles=(contract.ROLE_PREFILL,))
        for names in (
            ("--speculative-config", "-sc"),
            ("--spec-method",),
            ("--spec-model",),
            ("--spec-tokens",),
        )
    ),
)


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused arguments of all three lists; only vLLM's are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    both = (contract.ROLE_PREFILL, contract.ROLE_DECODE)
    return [
        *_refused(cr.spec.engine.args, "spec.engine.args", both),
        *_refused(cr.spec.prefill.args, "spec.prefill.args", (contract.ROLE_PREFILL,)),
        *_refused(cr.spec.decode.args, "spec.decode.args", (contract.ROLE_DECODE,)),
    ]


def _refused(args: Sequence[str], field: str, roles: Sequence[str]) -> Iterator[Problem]:
    for index, argument in enumerate(args):
        name, value = _split(argument, args[index + 1] if index + 1 < len(args) else "")
        for rule in _RULES:
            concerned = any(role in rule.roles for role in roles)
            if concerned and rule.matches(name) and value != rule.harmless:
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
    for short in ("-pp", "-sc"):
        if name.startswith(short) and name != short and not equals:
            return short, name.removeprefix(short)
    return name, value if equals else following
