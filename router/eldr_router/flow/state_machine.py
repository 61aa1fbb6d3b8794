"""One request as a state machine. Pure.

``step(state, event)`` returns the next state and what to do. The rule that the table serves above all: **a prefill result
is used once.** It may be sent to a second decode engine only if the first refused the connection, or declined the request before it
read it; after anything else the prefill engine may have freed the blocks, and a second pull would return wrong tokens without an error, so the prompt
is prefilled again. The same holds after the result's lease: what an engine says after ``expires`` may rest on blocks that
others had overwritten, so it is thrown away. A result that no engine will read any more is freed: otherwise it occupies
the prefill engine's cache for the rest of its lease.

What a driver owes the machine: it carries the actions out in order, reports every event with the time it learned of it,
and after :class:`Prefill` or :class:`Decode` reports what became of that leg until :class:`Leave` ends it.

References
----------
.. [1] ``docs/reference/engine-protocol.md``: vLLM's two-phase transfer; measured failures in its tests, ``tests/vllm``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from eldr_router.engines.health import Engine, Failure
from eldr_router.flow.vocabulary import (
    Action,
    Actions,
    Answered,
    Begin,
    Broken,
    ClientDisconnected,
    Connected,
    ConnectFailed,
    Decode,
    Eject,
    End,
    EndBroken,
    Ended,
    EngineFull,
    Event,
    Exhausted,
    Fail,
    Free,
    Keep,
    Leave,
    NoEndpoint,
    NoPrefillEndpoint,
    PassOn,
    Phase,
    Prefill,
    Prefilled,
    ProbeNow,
    PullConfirmed,
    Ready,
    RecordFailure,
    RecordSuccess,
    RetryPlacement,
    Send,
    Start,
    State,
    Step,
    Tick,
    Unpaired,
    Wait,
)

_SHARED_BLAME = 1 / 3
_NOT_BLAMED = frozenset(("stale", "expired", "client_stalled", "rate_limited"))
_TRANSPORT = frozenset(("reset", "timeout", "protocol"))
"""Causes after which the engine itself is asked whether it lives."""
_NONE: frozenset[Engine] = frozenset()
_MAYBE_PULL_FAILED = frozenset(("status", "error_event"))
"""What a decode engine says whose pull failed, whichever end of it is broken."""
_ENGINE_DONE = _MAYBE_PULL_FAILED | {"rate_limited", "aborted"}
"""Causes after which the engine is done with the request: it reads nothing of the result any more."""
_NEW, _PREFILL, _DECODE, _WAIT, _ANSWER, _OVER = Phase  # an enum's attributes cost five times a name's


def step(state: State, event: Event) -> Step:
    """Return the next state and what to do.

    An event that means nothing in a phase changes nothing.

    Returns
    -------
    (State, tuple of Action)
    """
    handler = _TABLE.get((state.phase, type(event)))
    return (state, ()) if handler is None else handler(state, event)


def _start(state: State, event: Start) -> Step:  # noqa: ARG001
    return _prefill(state, ()) if state.split else _decode(state, ())


def _prefill(state: State, before: Actions) -> Step:
    action = Prefill(state.avoid, state.broken)
    return replace(state, phase=_PREFILL), (*before, action)


def _decode(state: State, before: Actions) -> Step:
    if state.phase is not _DECODE:
        state = replace(state, phase=_DECODE)
    return state, (*before, Decode(state.result_unsent, state.avoid, state.broken))


def _finish(state: State, *actions: Action) -> Step:
    return replace(state, phase=_OVER, result_unsent=False), (*actions, *_freeing(state))


def _freeing(state: State) -> Actions:
    return (Free(),) if state.result_unsent else ()


def _is_pinned(state: State) -> bool:
    """Whether there is a result of which no pull is known: its blocks may be pinned at the prefill engine."""
    return state.prefill_engine is not None and state.expires < math.inf


def _prefill_connect_failed(state: State, event: ConnectFailed) -> Step:
    failures = (*state.failures, Failure("prefill", event.engine, "refused", event.message))
    state = replace(state, avoid=state.avoid | {event.engine}, failures=failures)
    return _prefill(state, (Leave(), Eject(event.engine)))


def _no_prefill(state: State, event: NoPrefillEndpoint) -> Step:  # noqa: ARG001
    if state.kept_429:
        return _finish(state, PassOn(kept=True))
    return _decode(replace(state, split=False, avoid=_NONE), ())


def _prefill_broken(state: State, event: Broken) -> Step:
    failure = Failure("prefill", event.engine, event.cause, event.message)
    rate_limited = event.cause == "rate_limited"
    state = replace(state, failures=(*state.failures, failure), kept_429=state.kept_429 or rate_limited)
    if event.unavailable or rate_limited:
        # as if it had refused the connection: nothing was tried, nothing is spent
        state = replace(state, avoid=state.avoid | {event.engine})
        return _prefill(state, (Leave(), Eject(event.engine)) if event.unavailable else (Keep(), Leave()))
    spent = state.spent + _cost(state, event)
    state, blame = _blame(state, "prefill", event, None)
    state = replace(state, spent=spent, broken=state.broken | {event.engine})
    if state.spent >= state.attempts:
        return _give_up(state, (Leave(), *blame))
    return _prefill(state, (Leave(), *blame))


def _prefilled(state: State, event: Prefilled) -> Step:
    blame: Actions = ()
    if state.suspect is not None and state.suspect[0] == "prefill":
        # the same prompt was taken: by another engine, then the first one was at fault, or by the same, then neither was
        if state.suspect[1] != event.engine:
            blame = (RecordFailure(state.suspect[1]),)
        state = replace(state, suspect=None)
    source = event.engine if event.kv else None
    state = replace(
        state,
        phase=_DECODE,
        prefill_engine=source,
        result_unsent=event.kv,
        expires=event.expires,
        avoid=_NONE,
        kept_429=False,
    )
    return _decode(state, (Leave(), *blame, RecordSuccess(event.engine)))


def _leg_answered(state: State, event: Answered) -> Step:
    return _finish(
        replace(state, result_unsent=_is_pinned(state)), Leave(), RecordSuccess(event.engine), PassOn()
    )


def _leg_gone(state: State, event: ClientDisconnected) -> Step:  # noqa: ARG001
    return _finish(state, Leave())


def _exhausted(state: State, event: Exhausted) -> Step:
    leg = "prefill" if state.phase is _PREFILL else "decode"
    failure = Failure(leg, event.engine, "exhausted", event.message)
    state = replace(state, failures=(*state.failures, failure))
    return _finish(state, Leave(), Fail(503, f"{event.message}; retry later", "overloaded"))


def _no_endpoint(state: State, event: NoEndpoint) -> Step:
    if state.result_unsent and event.may_wait:  # a result is worth a wait: its prompt has been computed
        return replace(state, phase=_WAIT, avoid=_NONE), (Wait(),)
    return _finish(
        state, PassOn(kept=True) if state.kept_429 else Fail(event.status, event.message, event.code)
    )


def _unpaired(state: State, event: Unpaired) -> Step:  # noqa: ARG001
    unsplit = replace(state, result_unsent=False, split=False, prefill_engine=None, expires=math.inf)
    return _decode(unsplit, _freeing(state))


def _decode_connect_failed(state: State, event: ConnectFailed) -> Step:
    failures = (*state.failures, Failure("decode", event.engine, "refused", event.message))
    state = replace(state, avoid=state.avoid | {event.engine}, failures=failures)
    return _decode(state, (Leave(), Eject(event.engine)))


def _engine_full(state: State, event: EngineFull) -> Step:  # noqa: ARG001
    # nothing was pulled: the result is what it was before
    return _decode(replace(state, result_unsent=_is_pinned(state)), (Leave(),))


def _retry_placement(state: State, event: RetryPlacement) -> Step:
    if event.at > state.expires:  # blocks whose lease is over need no freeing
        message = "every decode engine was full until the lease of the prefill result was nearly over"
        return _finish(
            replace(state, result_unsent=False), Fail(429, f"{message}; retry later", "overloaded")
        )
    return _decode(state, ())


def _connected(state: State, event: Connected) -> Step:
    if event.at > state.expires:
        if any(failure.cause == "expired" for failure in state.failures):
            # prefill may take longer than its lease: then no result is ever of use
            state = replace(state, split=False)
        return _expired(state, event.engine, event.at)
    return replace(state, result_unsent=False), (Send(kv=state.result_unsent),)


def _is_late(state: State, event: Ready | Tick) -> bool:
    # a whole answer of an engine that keeps the deadline of the pull counts whenever it comes
    return event.at > state.expires and (state.streams or not event.guards)


def _pull_confirmed(state: State, event: PullConfirmed) -> Step:
    if event.at > state.expires:
        return _expired(state, event.engine, event.at)
    return (state if state.expires == math.inf else replace(state, expires=math.inf)), ()


def _ready(state: State, event: Ready) -> Step:
    if _is_late(state, event):
        return _expired(state, event.engine, event.at)
    blame: Actions = () if state.suspect is None else (RecordFailure(*state.suspect[1:]),)
    state = replace(state, phase=_ANSWER, expires=math.inf, suspect=None)
    return state, (*blame, RecordSuccess(event.engine, state.prefill_engine), Begin())


def _tick(state: State, event: Tick) -> Step:
    return _expired(state, event.engine, event.at) if _is_late(state, event) else (state, ())


def _expired(state: State, engine: Engine, at: float) -> Step:
    late = at - state.expires
    message = f"nothing came before the lease of its prefill result was nearly over ({late:.1f} s ago)"
    sent = not state.result_unsent
    # blocks whose lease is over need no freeing; a whole answer that takes so long would outlast the next lease, too
    state = replace(state, result_unsent=False, split=state.split and (state.streams or not sent))
    # one that was sent nothing did nothing wrong
    return _retry(state, Broken(engine, "expired", message), avoid=sent)


def _decode_broken(state: State, event: Broken) -> Step:
    if (
        event.cause in _MAYBE_PULL_FAILED and event.at > state.expires
    ):  # the engine kept the deadline: neither end is to blame
        return _expired(state, event.engine, event.at)
    return _retry(state, event)


def _retry(state: State, event: Broken, *, avoid: bool = True) -> Step:
    """Give an attempt up; the result may have been pulled, so the next one begins with the prompt."""
    failure = Failure("decode", event.engine, event.cause, event.message)
    source = state.prefill_engine if event.cause in _MAYBE_PULL_FAILED else None
    spent = state.spent + _cost(state, event)
    state, blame = _blame(state, "decode", event, source)
    rate_limited = event.cause == "rate_limited"
    before = (Keep(), Leave()) if rate_limited else (Leave(), *blame)
    if event.cause in _ENGINE_DONE and _is_pinned(state):
        before = (*before, Free())
    state = replace(
        state,
        failures=(*state.failures, failure),
        spent=spent,
        broken=state.broken | ({event.engine} if avoid else _NONE) | (_NONE if source is None else {source}),
        avoid=_NONE,
        prefill_engine=None,
        result_unsent=False,
        expires=math.inf,
        kept_429=rate_limited
        and not state.split,  # a prompt that is prefilled again has other engines to ask
    )
    if state.spent >= state.attempts:
        return _give_up(state, before)
    return (_prefill if state.split else _decode)(state, before)


def _cost(state: State, event: Broken) -> int:
    """Return how many attempts a failure costs: none at an engine that fails others too, so that one that is well gets asked.

    A request that ends engines must not go to all of them; each engine that was well is an attempt.
    """
    uncharged = event.doubtful and event.engine not in state.broken and event.at < state.free_retry_until
    return 0 if uncharged else 1


def _give_up(state: State, before: Actions) -> Step:
    if state.failures[-1].cause == "rate_limited":
        return _finish(state, *before, PassOn(kept=True))
    # a suspect that is left failed alone, however often it was asked
    blame: Actions = () if state.suspect is None else (RecordFailure(*state.suspect[1:]),)
    last = state.failures[-1]
    message = f"gave up after {len(state.failures)} attempts; the last one: {last.leg} engine {last.engine}: {last.message}"
    return _finish(state, *before, *blame, Fail(502, message, "upstream_failed"))


def _blame(state: State, leg: str, event: Broken, source: Engine) -> Step:
    """Suspect the first engine that failed; a request that fails on several is mostly to blame itself."""
    engine = event.engine
    if event.unavailable:
        return state, (Eject(engine),)
    if event.cause in _NOT_BLAMED:
        return state, ()
    ask: Actions = (ProbeNow(engine),) if event.cause in _TRANSPORT else ()
    if state.shared:
        seen = engine in state.broken
        return state, ask if seen else (*ask, RecordFailure(engine, weight=_SHARED_BLAME))
    if state.suspect is None:
        return replace(state, suspect=(leg, engine, source)), ask
    first = state.suspect[1]
    if first == engine:
        return state, ask
    shared = (RecordFailure(first, weight=_SHARED_BLAME), RecordFailure(engine, weight=_SHARED_BLAME))
    return replace(state, suspect=None, shared=True), (*ask, *shared)


def _ended(state: State, event: Ended) -> Step:  # noqa: ARG001
    return _finish(state, Leave(), End())


def _answer_broken(state: State, event: Broken) -> Step:
    failure = Failure("decode", event.engine, event.cause, event.message)
    state = replace(state, failures=(*state.failures, failure))
    blame: Actions = ()
    if event.cause in _TRANSPORT:
        blame = (ProbeNow(event.engine), RecordFailure(event.engine))
    return _finish(state, Leave(), *blame, EndBroken(event.cause, event.message))


_TABLE: dict[tuple[Phase, type], Callable[[State, Any], Step]] = {
    (_NEW, Start): _start,
    (_NEW, ClientDisconnected): lambda state, _: _finish(state),
    (_PREFILL, ConnectFailed): _prefill_connect_failed,
    (_PREFILL, Exhausted): _exhausted,
    (_PREFILL, NoPrefillEndpoint): _no_prefill,
    (_PREFILL, Broken): _prefill_broken,
    (_PREFILL, Prefilled): _prefilled,
    (_PREFILL, Answered): _leg_answered,
    (_PREFILL, ClientDisconnected): _leg_gone,
    (_DECODE, NoEndpoint): _no_endpoint,
    (_DECODE, Unpaired): _unpaired,
    (_DECODE, ConnectFailed): _decode_connect_failed,
    (_DECODE, EngineFull): _engine_full,
    (_DECODE, Exhausted): _exhausted,
    (_DECODE, Connected): _connected,
    (_DECODE, PullConfirmed): _pull_confirmed,
    (_DECODE, Ready): _ready,
    (_DECODE, Answered): _leg_answered,
    (_DECODE, Broken): _decode_broken,
    (_DECODE, Tick): _tick,
    (_DECODE, ClientDisconnected): _leg_gone,
    (_WAIT, RetryPlacement): _retry_placement,
    (_WAIT, ClientDisconnected): lambda state, _: _finish(state),
    (_ANSWER, Ended): _ended,
    (_ANSWER, Broken): _answer_broken,
    (_ANSWER, ClientDisconnected): _leg_gone,
}
