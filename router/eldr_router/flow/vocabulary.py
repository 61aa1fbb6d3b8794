"""Vocabulary of :mod:`.state_machine`: state, events, actions."""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct

from eldr_router.engines.health import Engine, Failure


class Phase(StrEnum):
    """Where a request stands."""

    NEW = "new"
    PREFILL = "prefill"
    DECODE = "decode"
    WAIT = "wait"
    ANSWER = "answer"
    OVER = "over"

    __hash__ = str.__hash__  # an enum's own is a Python function, and every step looks its phase up


class State(Struct, frozen=True):
    """A request between two events.

    Attributes
    ----------
    attempts : int
        How many may fail.
    split : bool
        Prefill and decode apart.
    streams : bool
        The client asked for a stream.
    failures : tuple of Failure
        Attempts given up; those that cost nothing (a refused connection) included.
    free_retry_until : float
        Until then a failure at an engine that fails others too costs no attempt.
    spent : int
        Attempts that count.
    prefill_engine : Engine or None
        The prefill engine of the result.
    result_unsent : bool
        There is a result that no engine was sent.
    expires : float
        Until when the result may be pulled; infinite once the pull is known to be over.
    avoid, broken : frozenset of Engine
        Engines to avoid in this leg, and those that failed this request.
    suspect : tuple or None
        (leg, engine, prefill engine of its pull or None): who failed first, and is not blamed yet.
    shared : bool
        It failed on several engines: the request itself may be at fault.
    kept_429 : bool
        An engine of this leg answered 429, and the answer is kept.
    """

    phase: Phase = Phase.NEW
    attempts: int = 3
    free_retry_until: float = math.inf
    split: bool = True
    streams: bool = True
    failures: tuple[Failure, ...] = ()
    spent: int = 0
    prefill_engine: Engine = None
    result_unsent: bool = False
    expires: float = math.inf
    avoid: frozenset[Engine] = frozenset()
    broken: frozenset[Engine] = frozenset()
    suspect: tuple[str, Engine, Engine] | None = None
    shared: bool = False
    kept_429: bool = False


# --- events: what happened -------------------------------------------------------------------------------------------


class Start(Struct, frozen=True):
    """The request is admitted."""


class ConnectFailed(Struct, frozen=True):
    """An engine did not accept a connection."""

    engine: Engine
    message: str = ""


class EngineFull(Struct, frozen=True):
    """A decode engine is full, and has read nothing of the request."""

    engine: Engine


class Exhausted(Struct, frozen=True):
    """The router itself lacks what a connection takes."""

    engine: Engine
    message: str = ""


class Connected(Struct, frozen=True):
    """A decode engine accepted a connection; nothing is sent yet."""

    engine: Engine
    at: float


class Prefilled(Struct, frozen=True):
    """A prefill engine answered.

    ``expires`` is infinite and ``kv`` false where it handed nothing over.
    """

    engine: Engine
    kv: bool
    expires: float


class PullConfirmed(Struct, frozen=True):
    """A decode engine streamed something that comes after its pull."""

    engine: Engine
    at: float


class Ready(Struct, frozen=True):
    """A decode engine said enough to begin a response.

    ``guards``: it keeps the deadlines of pulls.
    """

    engine: Engine
    at: float
    guards: bool = False


class Answered(Struct, frozen=True):
    """An engine answered the request itself, with 4xx: that is for the client."""

    engine: Engine


class Broken(Struct, frozen=True):
    """An attempt failed, or an answer broke."""

    engine: Engine
    cause: str
    message: str = ""
    unavailable: bool = False
    """The engine says that it takes no requests for now."""
    doubtful: bool = False
    """The last request that ended there failed, too."""
    at: float = 0.0


class Ended(Struct, frozen=True):
    """The response is over, properly."""


class Tick(Struct, frozen=True):
    """Time passes while an engine is silent; ``guards``: as it last reported."""

    engine: Engine
    at: float
    guards: bool = False


class RetryPlacement(Struct, frozen=True):
    """Engines may have room by now."""

    at: float


class NoPrefillEndpoint(Struct, frozen=True):
    """No prefill engine is left."""


class NoEndpoint(Struct, frozen=True):
    """No decode engine is left.

    ``may_wait``: a full one may have room at any moment.
    """

    status: int
    message: str
    code: str
    may_wait: bool = False


class Unpaired(Struct, frozen=True):
    """No decode engine that may have the result's blocks has room.

    Another one may do the whole request.
    """


class ClientDisconnected(Struct, frozen=True):
    """The client left."""


Event = (
    Start
    | ConnectFailed
    | EngineFull
    | Exhausted
    | Connected
    | Prefilled
    | PullConfirmed
    | Ready
    | Answered
    | Broken
    | Ended
    | Tick
    | RetryPlacement
    | NoPrefillEndpoint
    | NoEndpoint
    | Unpaired
    | ClientDisconnected
)

# --- actions: what to do ---------------------------------------------------------------------------------------------


class Prefill(Struct, frozen=True):
    """Send the prompt to a prefill engine.

    To none of ``avoid``, and rather to none of ``broken``.
    """

    avoid: frozenset[Engine]
    broken: frozenset[Engine]


class Decode(Struct, frozen=True):
    """Place the request on a decode engine, and connect.

    With the result's blocks if ``kv``.
    """

    kv: bool
    avoid: frozenset[Engine]
    broken: frozenset[Engine]


class Wait(Struct, frozen=True):
    """Report when engines may have room."""


class Send(Struct, frozen=True):
    """Send the request over the connection to the decode engine.

    With ``kv`` the result is used up.
    """

    kv: bool


class Leave(Struct, frozen=True):
    """End the leg: release its load, drop an unfinished connection."""


class Eject(Struct, frozen=True):
    """Leave an engine alone for a while: it takes no requests."""

    engine: Engine


class RecordFailure(Struct, frozen=True):
    """Count a failure against an engine.

    ``source`` is the other end of its pull, which may be at fault instead.
    """

    engine: Engine
    source: Engine = None
    weight: float = 1.0


class ProbeNow(Struct, frozen=True):
    """Ask an engine whether it lives."""

    engine: Engine


class RecordSuccess(Struct, frozen=True):
    """Count a good answer for an engine, and for the other end of its pull."""

    engine: Engine
    source: Engine = None


class Begin(Struct, frozen=True):
    """Begin the response.

    From now on bytes go straight to the client.
    """


class Keep(Struct, frozen=True):
    """Keep the engine's own answer, of the leg that is left next.

    The client gets it if there is no better one.
    """


class PassOn(Struct, frozen=True):
    """Give the client the engine's own answer, or the kept one."""

    kept: bool = False


class Fail(Struct, frozen=True):
    """Give the client an error of the router's."""

    status: int
    message: str
    code: str


class End(Struct, frozen=True):
    """End the response."""


class EndBroken(Struct, frozen=True):
    """End a response that broke, by an error event or by a cut."""

    cause: str
    message: str


class Free(Struct, frozen=True):
    """Have the result's blocks freed: no engine will read them.

    Else they are pinned for the rest of their lease.
    """


Action = (
    Prefill
    | Decode
    | Wait
    | Send
    | Leave
    | Eject
    | RecordFailure
    | ProbeNow
    | RecordSuccess
    | Begin
    | Keep
    | PassOn
    | Fail
    | End
    | EndBroken
    | Free
)
Actions = tuple[Action, ...]
Step = tuple[State, Actions]
