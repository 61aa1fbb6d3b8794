"""Arguments for vLLM that would break what the operator has set up, and those with which engines count no experts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eldr_operator.errors import Problem
from eldr_operator.models import EldrDeployment
from eldr_operator.validation import speculation
from eldr_operator.workloads.options import Option, as_json, options


@dataclass(frozen=True, slots=True)
class Rule:
    """What is refused, and what to do instead.

    Parameters
    ----------
    names : tuple of str
        The options and their short forms.
    harmless : range
        Values that are let pass.
    """

    names: tuple[str, ...]
    remedy: str
    harmless: range = range(0)

    def matches(self, option: Option) -> bool:
        """Tell whether vLLM may read an option as one of these."""
        return option.may_be(self.names, _COMPLETE)

    def lets_pass(self, value: str) -> bool:
        """Tell whether a value does no harm; what is no number is refused, vLLM would not take it either."""
        return _integer(value) in self.harmless


_ACTIVE = "--max-num-active-seqs"
_QUEUE = "--max-num-queued-reqs"
_STAGES = ("--pipeline-parallel-size", "-pp")
_ONE = range(2)
_OWNED = "remove it: the operator sets it, and routers and engines find each other by it"
_SPACED = re.compile(r"(-[^\s={]*)\s+")
"""An option before a blank that no ``=`` and no ``{`` precedes."""
_PARTS = "no engine process sees every layer of every token; gpus alone is tensor parallelism"
_DATA_PARALLEL = (
    "remove it: one address would hide several batches, among which routers cannot choose; use more replicas, or, for "
    "decode engines whose ranks share their experts, spec.decode.parallelism.data"
)
_COPIES = (
    "remove it: for decode engines that is spec.decode.parallelism.redundantExperts; for prefill engines write it into "
    "spec.prefill.args, with a communicator"
)
_NODES = "remove it: an engine is one pod; use gpus, which is tensor parallelism, or more replicas"
_MICRO_BATCHES = "micro-batches hide which token goes where"
_PLAIN_HTTP = "remove it: routers and probes reach engines by plain HTTP"
_RULES = (
    Rule(("--kv-transfer-config",), "remove it: the operator sets it; the lease is spec.engine.leaseSeconds"),
    Rule(
        ("--kv-offloading-size",),
        "remove it: vLLM would replace the connectors that move KV blocks and count experts with its offloading connector",
    ),
    Rule(
        ("--config",),
        "remove it: a file cannot be checked; write its options as arguments",
    ),
    Rule(("--port",), _OWNED),
    Rule(("--host",), _OWNED),
    Rule(("--uds",), "remove it: routers reach engines by address and port"),
    Rule(
        ("--root-path",),
        "remove it: only routers talk to engines; a prefix belongs to the gateway before them",
    ),
    Rule(
        (
            *("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"),
            "--enable-ssl-refresh",
        ),
        _PLAIN_HTTP,
    ),
    Rule(("--grpc", "--headless"), _PLAIN_HTTP),
    Rule(("--served-model-name",), "remove it: the name that clients send is spec.model.name"),
    Rule(("--model",), "remove it: the model is spec.model.uri"),
    Rule(("--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl"), _DATA_PARALLEL, _ONE),
    Rule(
        (
            *("--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr"),
            *("--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp"),
            *("--data-parallel-backend", "-dpb", "--data-parallel-hybrid-lb", "-dph"),
            *("--data-parallel-external-lb", "-dpe", "--data-parallel-multi-port-external-lb", "-dpm"),
            "--data-parallel-supervisor-port",
        ),
        _DATA_PARALLEL,
    ),
    Rule(("--nnodes", "-n"), _NODES, _ONE),
    Rule(("--node-rank", "-r"), _NODES, range(1)),
    Rule(("--master-addr", "--master-port"), _NODES),
    Rule(("--disable-log-stats",), "remove it: routers and clusters depend on what engines report"),
    Rule(("--tokens-only",), "remove it: engines would answer with token ids, and clients wait for text"),
    Rule(("--scheduler-cls",), "remove it: what another scheduler hands to connectors is not known"),
    Rule(
        ("--shutdown-timeout",),
        "remove it: drainSeconds of the role sets it, and how long a pod may take to end",
    ),
)
_EPLB = Rule(
    ("--enable-eplb",),
    'name a communicator beside it, such as --eplb-config {"communicator": "torch_gloo"}: left to itself vLLM takes NIXL, which is '
    "there for KV, and registers all weights with it",
)
_EPLB_CONFIG = Rule(("--eplb-config",), _COPIES)
_DECODE_RULES = (
    *_RULES,
    Rule((*_EPLB.names, *_EPLB_CONFIG.names), _COPIES),
    Rule(
        _STAGES,
        "remove it: NIXL hands KV over to no engine of several stages; use gpus, which is tensor parallelism",
        _ONE,
    ),
    Rule(
        ("--max-num-queued-tokens",),
        "remove it: decode engines would refuse prompts that are prefilled already; for prefill engines write it into spec.prefill.args",
    ),
)
_UNCOUNTED = (
    Rule(_STAGES, _PARTS, _ONE),
    Rule(("--decode-context-parallel-size", "-dcp"), _PARTS, _ONE),
    Rule(("--prefill-context-parallel-size", "-pcp"), _PARTS, _ONE),
    Rule(("--enable-dbo",), _MICRO_BATCHES),
    Rule(("--ubatch-size",), _MICRO_BATCHES, _ONE),
)
"""With which engines serve, and their plugin stops counting at their start."""
_COMPLETE = frozenset(("-dc", *(name for rule in (*_DECODE_RULES, *_UNCOUNTED) for name in rule.names)))
"""No beginnings of longer options: refused ones, and ``-dc``, which is ``--diffusion-config`` and not ``-dcp``."""


def problems(cr: EldrDeployment) -> list[Problem]:
    """Return the refused arguments of all three lists; only vLLM's are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    spec = cr.spec
    return [
        *_refused(spec.engine.args, "spec.engine.args", _DECODE_RULES),
        *_refused(spec.prefill.args, "spec.prefill.args", _RULES),
        *_refused(spec.decode.args, "spec.decode.args", _DECODE_RULES),
        *_copies_by_nixl(spec.prefill.args, "spec.prefill.args"),
        *_too_few_sequences(cr),
        *joined(spec.engine.args, "spec.engine.args"),
        *joined(spec.prefill.args, "spec.prefill.args"),
        *joined(spec.decode.args, "spec.decode.args"),
    ]


def uncounted(cr: EldrDeployment, role: str) -> list[str]:
    """Return the arguments that keep engines of a role from counting, each with its reason; only vLLM's are looked at."""
    if cr.spec.engine.type != "vLLM":
        return []
    lists = {"spec.engine.args": cr.spec.engine.args, f"spec.{role}.args": getattr(cr.spec, role).args}
    faults = {}
    for field, args in lists.items():
        for option in options(args):
            for rule in _UNCOUNTED:
                if rule.matches(option):  # the last one counts
                    faults[rule] = (
                        ""
                        if rule.lets_pass(option.value)
                        else f"{field}[{option.index}] ({option.shown}): {rule.remedy}"
                    )
                elif option.name == f"--no-{rule.names[0].removeprefix('--')}":
                    faults[rule] = ""
    return [*filter(None, faults.values()), *speculation.untried(cr, role)]


def joined(args: Sequence[str], field: str) -> Iterator[Problem]:
    """Yield items that hold an option and its value with a blank between, which only a shell would split."""
    for index, argument in enumerate(args):
        if spaced := _SPACED.match(argument):
            name, value = spaced[1], argument[spaced.end() :].removeprefix("=").strip()
            instead = f"{name}={value}, or two items" if value else name
            remedy = f"write {instead}: each item is one argument, and no shell splits it"
            yield Problem("InvalidArgument", f"{field}[{index}]", argument, remedy)


def _refused(args: Sequence[str], field: str, rules: Sequence[Rule]) -> Iterator[Problem]:
    for option in options(args):
        for rule in rules:
            if rule.matches(option) and not rule.lets_pass(option.value):
                yield Problem("InvalidArgument", f"{field}[{option.index}]", option.shown, rule.remedy)
                break


def _copies_by_nixl(args: Sequence[str], field: str) -> Iterator[Problem]:
    """Find EPLB without a communicator."""
    asked = [option for option in options(args) if _EPLB.matches(option)]
    configs = [option for option in options(args) if _EPLB_CONFIG.matches(option)]
    keys = {option.key: as_json(option.value) for option in configs if option.key}
    values = [as_json(option.value) for option in configs if not option.key]
    # vLLM makes one value of all keys and appends it; the last value counts
    config = keys or (values[-1] if values else None)
    if asked and not (isinstance(config, dict) and config.get("communicator")):
        yield Problem("InvalidArgument", f"{field}[{asked[0].index}]", asked[0].shown, _EPLB.remedy)


def _too_few_sequences(cr: EldrDeployment) -> Iterator[Problem]:
    """Find a decode batch or queue smaller than what routers send; ``--max-num-seqs`` is a limit that engines report.

    Whoever waits past its lease is prefilled again. Of a request that its queue refuses, vLLM frees the prefill result.
    """
    spec, limit = cr.spec, cr.spec.router.max_in_flight_per_decode
    lists = {"spec.engine.args": spec.engine.args, "spec.decode.args": spec.decode.args}
    listed = [
        (f"{field}[{option.index}]", option) for field, args in lists.items() for option in options(args)
    ]
    for name in (_ACTIVE, _QUEUE):
        given = [
            (field, value)
            for field, option in listed
            if name.startswith(option.name) and len(option.name) > len("--max-num-")
            if (value := _integer(option.value)) is not None  # vLLM refuses it itself
        ]
        if given and given[-1][1] < limit:
            field, value = given[-1]  # the last one counts
            loss = "is refused" if name == _QUEUE else "waits past its lease"
            yield Problem(
                "InvalidArgument",
                field,
                f"{name}={value}",
                f"routers send up to spec.router.maxInFlightPerDecode={limit} sequences: lower that to {value}, or raise "
                f"this; a request that {loss} loses its prefill result",
            )


def _integer(text: str) -> int | None:
    """Return an argument's value as vLLM reads it, None if it is no number."""
    try:
        return int(text)
    except ValueError:
        return None
