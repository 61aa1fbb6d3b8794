"""A completion request: carries out what its state machine says.

:mod:`eldr_router.flow.state_machine` decides what happens next. This module chooses engines and does the I/O, in callbacks of connections.
A request has no task or future of its own, and only this object writes its response.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace

from eldr.contract import ROLE_DECODE, ROLE_PREFILL
from eldr_router.api import bodies, headers
from eldr_router.engines.endpoint import Endpoint, Occupancy
from eldr_router.engines.health import pull_failed, pulled
from eldr_router.engines.registry import Admission
from eldr_router.flow import vocabulary
from eldr_router.flow.decode_leg import DecodeLeg
from eldr_router.flow.eligible import place_avoiding, split_group
from eldr_router.flow.freeing import free_result
from eldr_router.flow.legs import Leg, PrefillLeg
from eldr_router.flow.services import Services
from eldr_router.flow.state_machine import step
from eldr_router.flow.vocabulary import Event, Phase, State
from eldr_router.http.errors import RouterError
from eldr_router.http.requests import Request
from eldr_router.net.inbound import ClientConnection
from eldr_router.placement.signature import WHOLE, Signature
from eldr_router.telemetry.request import RequestTelemetry

_OVER = Phase.OVER


class Completion:
    """One completion request."""

    __slots__ = (
        "_admission", "_body", "_client", "_kept", "_kv_key", "_kv_params", "_leg", "_lines", "_prefill_sent_at", "_prompt_tokens",
        "_request", "_sequences", "_services", "_state", "_table", "_telemetry", "_unsplit_reason", "now", "write",
    )  # fmt: skip

    def __init__(self, services: Services, request: Request, client: ClientConnection) -> None:
        self._services = services
        self._request = request
        self._client = client
        self._table = services.table
        self._telemetry = RequestTelemetry(services.telemetry, request, services.table)
        self._admission: Admission | None = None
        self._body: bodies.Parsed | None = None
        self._unsplit_reason: str | None = None
        self._kv_key = ""  # KV key of the engines it may use; empty while all are compatible
        self._sequences = 1
        self._prefill_sent_at = 0.0
        self._prompt_tokens = 0  # as far as a prefill engine has reported them
        self._leg: Leg | None = None
        self._kept: Leg | None = None
        self._kv_params: dict[str, Any] | None = None
        self._state = State()
        self.now, self.write = services.clock, client.write  # the hot path: no method around them

    @classmethod
    def serve(cls, services: Services, request: Request, client: ClientConnection) -> None:
        """Serve one request; whatever goes wrong, it is counted and answered."""
        flow = cls(services, request, client)
        try:
            flow._parse_and_admit()
        except RouterError as error:
            flow._respond_error(error)
        except Exception:  # noqa: BLE001 - ``client.fail`` logs it
            flow._bug()

    def _parse_and_admit(self) -> None:
        services = self._services
        body = self._body = bodies.parse(self._request.body, self._request.path, services.settings.max_body)
        self._telemetry.on_request(body.fields)
        self._lines = headers.lines(self._request)
        self._unsplit_reason = bodies.unsplittable(body)
        if self._unsplit_reason is not None:
            self._sequences = bodies.sequences(body)
        self._client.attach(self)
        self._admit()

    def _admit(self) -> None:
        admission = self._services.queue.admit(self, self._sequences)
        if admission is not None:
            self._start(admission)

    def _requeue(self) -> None:
        """Queue again: all engines were full, and none has worked on the request."""
        if self._admission is not None:
            self._admission.release()
            self._admission = None
        self._state = State()
        try:
            self._admit()
        except RouterError as error:
            self._respond_error(error)

    def _start(self, admission: Admission) -> None:
        services = self._services
        self._admission, self._table = admission, services.table
        self._sequences = admission.sequences
        if self._unsplit_reason is None:
            self._kv_key, self._unsplit_reason = split_group(services.registry, self._table.max_in_flight)
        if self._unsplit_reason is None and self._is_short():
            self._unsplit_reason = "short"
        self._state = State(
            attempts=services.settings.attempts,
            free_retry_until=self.now() + services.settings.prefill_timeout_seconds,
            split=self._unsplit_reason is None,
            streams=self._parsed().streams,
        )
        self._handle(vocabulary.Start())

    def _is_short(self) -> bool:
        """Return whether the prompt is too short to split; each yes moves the estimate of its tokens towards the usual one."""
        least, kv_room = self._table.document.min_prefill_tokens, self._services.registry.kv_room
        if least == 0 or kv_room.expected(len(self._request.body)) >= least:
            return False
        kv_room.doubt()
        return True

    def admitted(self, admission: Admission) -> None:
        """See :class:`eldr_router.flow.queue.Waiter`."""
        self._telemetry.on_queue_exit()
        try:
            self._start(admission)
        except Exception:  # noqa: BLE001 - ``client.fail`` logs it
            self._bug()

    def turned_away(self, error: RouterError) -> None:
        """See :class:`eldr_router.flow.queue.Waiter`."""
        self._telemetry.on_queue_exit()
        self._respond_error(error)

    # what happens to it

    def handle(self, event: Event) -> None:
        """Take an event from a leg."""
        try:
            self._handle(event)
        except Exception:  # noqa: BLE001 - ``client.fail`` logs it
            self._bug()

    def _handle(self, event: Event) -> None:
        before = self._state
        state, actions = step(before, event)
        self._state = state
        if type(event) is vocabulary.EngineFull:
            self._services.telemetry.metrics.gave_up("decode", "full")
            event.engine.is_full = True
        if state.failures is not before.failures:
            for failure in state.failures[len(before.failures) :]:
                self._services.telemetry.metrics.gave_up(failure.leg, failure.cause)
        for action in actions:
            self._ACTIONS[type(action)](self, action)
        if self._state.phase is _OVER and not self._telemetry.closed:
            self._release_all()

    def gone(self) -> None:
        """See :class:`eldr_router.net.work.Work`."""
        self.handle(vocabulary.ClientDisconnected())

    def pause(self) -> None:
        """See :class:`eldr_router.net.work.Work`."""
        if self._leg is not None and self._state.phase is Phase.ANSWER:
            self._leg.pause()

    def resume(self) -> None:
        """See :class:`eldr_router.net.work.Work`."""
        if self._leg is not None:
            self._leg.resume()

    def tick(self, now: float) -> None:
        """Check the prefill lease: it can end while an engine is silent."""
        if self._state.phase is Phase.WAIT:
            if now > self._state.expires:
                self.retry_placement()
        elif self._leg is not None:
            endpoint = self._leg.endpoint
            self.handle(vocabulary.Tick(endpoint, now, endpoint.load is not None))

    def retry_placement(self) -> None:
        """See :class:`eldr_router.flow.queue.Result`."""
        self._services.queue.drop(self)
        self._services.waiting.discard(self)
        self._table = self._services.table
        self.handle(vocabulary.RetryPlacement(self.now()))

    def prefilled(
        self, leg: PrefillLeg, kv: dict[str, Any] | None, signature: Signature, prompt: int, model: object
    ) -> None:
        """Take a prefill's result: KV, signature, and the prompt's tokens."""
        self._telemetry.on_prefill_result(signature, self.now(), prompt)
        self._services.model_names.observe(self._telemetry.model, model)
        self._kv_params, self._prompt_tokens = kv, prompt
        self._services.registry.kv_room.learn(len(self._request.body), prompt)
        # the lease counts from the moment the prompt was sent: the engine began it later, but either process may have been
        # paused since, which the answer does not show
        expires = math.inf if kv is None else self._prefill_sent_at + self._table.usable_seconds
        self.handle(vocabulary.Prefilled(leg.endpoint, kv is not None, expires))

    # actions

    def _prefill(self, action: vocabulary.Prefill) -> None:
        registry = self._services.registry
        body, admission = self._parsed(), self._admission
        if admission is not None:
            admission.reopen()
        self._kv_params, self._telemetry.signature = None, WHOLE
        if action.avoid or action.broken:  # all engines of one KV key may fail together
            group = registry.group(self._table.max_in_flight, action.avoid, action.broken)
            self._kv_key = "" if group is None else group.key
        avoid = action.avoid | registry.incompatible(ROLE_PREFILL, self._kv_key)
        usable = registry.healthy_or_all(ROLE_PREFILL, avoid, action.broken)
        if not usable:
            self._unsplit_reason = "prefill_refused"
            self._handle(vocabulary.NoPrefillEndpoint())
            return
        prompt, prefix = body.beginning
        choice = self._services.affinity.choose(
            prompt, [endpoint.name for endpoint in usable], registry.totals(usable), prefix=prefix,
            session=headers.session(self._request), model=self._services.model_names.of(self._telemetry.model).encode(),
        )  # fmt: skip
        self._services.telemetry.metrics.prefill_placements(choice.reason)
        endpoint = usable[choice.position]
        self._kv_key = endpoint.spec.kv  # of the result: the engine's key may have changed when it answers
        self._telemetry.on_leg_start("prefill", endpoint, choice.reason)
        parts = self._wire(endpoint, partial(bodies.prefill_body, body))
        self._prefill_sent_at = self.now()
        leg = self._leg = PrefillLeg(
            self, self._services.pool, endpoint, Occupancy(endpoint), parts=parts, is_cut=body.api.is_cut,
            patience=self._services.settings.prefill_timeout_seconds,
        )  # fmt: skip
        leg.connect()

    def _decode(self, action: vocabulary.Decode) -> None:
        services, began, sequences = self._services, self.now(), self._sequences
        place = partial(
            services.placer.place, self._table, self._telemetry.signature,
            sequences=sequences, domain=headers.domain(self._request),
            demand=services.registry.kv_room.demand(self._prompt_tokens, bodies.longest(self._parsed()), sequences),
            is_new=self._telemetry.placement is None,
        )  # fmt: skip
        try:
            placement = place_avoiding(place, action, services.registry, self._kv_key, self._state.failures)
        except RouterError as error:
            self._telemetry.on_placement_error(error, began)
            full = error.status == 429 and not services.registry.has_free_slot(self._table.max_in_flight)
            if action.kv and not full and services.registry.incompatible(ROLE_DECODE, self._kv_key):
                self._unsplit_reason = "kv_key"
                self._handle(vocabulary.Unpaired())
            elif full and not (action.kv or self._state.failures):
                self._requeue()
            else:
                self._handle(vocabulary.NoEndpoint(error.status, error.message, error.code, full))
            return
        if not action.kv:
            self._services.telemetry.metrics.unsplit(
                self._unsplit_reason or ("no_kv" if self._state.split else "expired")
            )
        if self._admission is not None:
            self._admission.release()
        self._telemetry.on_placement(placement, began)
        leg = self._leg = DecodeLeg(
            self, self._services.pool, placement.endpoint, placement.occupancy,
            dechunk=self._request.http10, api=self._parsed().api, search=self._parsed().api.search(len(self._request.body)),
        )  # fmt: skip
        leg.connect()

    def _wait(self, action: vocabulary.Wait) -> None:  # noqa: ARG002
        if self._admission is not None:
            self._admission.reopen()
        self._services.waiting.add(self)
        self._services.queue.hold(self)

    def _send(self, action: vocabulary.Send) -> None:
        leg = self._leg
        assert leg is not None  # noqa: S101 - a Decode action made the leg
        kv = self._kv_params if action.kv else None
        pull_before = None
        if kv is not None:
            self._services.waiting.add(self)
            pull_before = self._services.telemetry.wall() + self._state.expires - self.now()
        body = partial(bodies.decode_body, self._parsed(), kv, pull_before)
        line = headers.limit_line(self._table.max_in_flight)
        leg.send(self._wire(leg.endpoint, body, line), self._services.settings.decode_idle_timeout_seconds)

    def _keep(self, action: vocabulary.Keep) -> None:  # noqa: ARG002
        self._kept = self._leg

    def _leave(self, action: vocabulary.Leave) -> None:  # noqa: ARG002
        leg = self._leg
        if leg is not None:
            self._services.waiting.discard(self)
            leg.leave()
            self._telemetry.on_leg_end(self._state.failures)

    def _eject(self, action: vocabulary.Eject) -> None:
        action.engine.health.eject(self.now())

    def _record_failure(self, action: vocabulary.RecordFailure) -> None:
        endpoint, source = action.engine, action.source
        if source is not None:
            pull_failed(endpoint.health, source.health, self.now())
        else:
            endpoint.health.failed(self.now(), action.weight)

    def _probe_now(self, action: vocabulary.ProbeNow) -> None:
        self._services.probes.ask(action.engine)

    def _record_success(self, action: vocabulary.RecordSuccess) -> None:
        endpoint, source = action.engine, action.source
        if source is not None:
            pulled(endpoint.health, source.health)
        else:
            endpoint.health.answered()

    def _begin_answer(self, action: vocabulary.Begin) -> None:  # noqa: ARG002
        leg, client = self._leg, self._client
        assert isinstance(leg, DecodeLeg)  # noqa: S101 - in phase DECODE the leg is one
        assert leg.head is not None  # noqa: S101
        self._services.waiting.discard(self)
        self._drop_body()
        self._telemetry.on_first_byte(leg.head.status, streams=leg.streams)
        if leg.is_complete:
            self._handle(vocabulary.Ended())
            return
        chunked = leg.head.body.splittable and not self._request.http10
        back = headers.to_client(leg.head, complete=False, chunked=chunked, endpoint=leg.endpoint.name)
        back.append(self._telemetry.returned_id())
        if leg.until_close:
            self._request.keep_alive = False
        client.begin_raw(client.head(leg.head.status, back) + leg.begin())
        if not client.can_write:
            leg.pause()

    def _end(self, action: vocabulary.End) -> None:  # noqa: ARG002
        leg = self._leg
        assert isinstance(leg, DecodeLeg)  # noqa: S101
        self._telemetry.on_response_end(leg.end)
        if leg.is_complete:
            self._respond(leg, leg.endpoint.name)
        else:
            self._client.end()

    def _pass_on(self, action: vocabulary.PassOn) -> None:
        leg = self._kept if action.kept else self._leg
        assert leg is not None  # noqa: S101 - set by Keep, or by the leg that just answered
        self._telemetry.outcome = "engine_error"
        self._respond(leg, None)

    def _respond(self, leg: Leg, decode: str | None) -> None:
        """Give the client a whole answer."""
        assert leg.head is not None  # noqa: S101
        back = headers.to_client(leg.head, complete=True, chunked=False, endpoint=decode)
        back.append(self._telemetry.returned_id())
        self._telemetry.status = leg.head.status
        body, leg.body = leg.body, b""
        self._client.respond(leg.head.status, back, body)

    def _fail(self, action: vocabulary.Fail) -> None:
        retry_after = {429: 1, 503: 2}.get(action.status)
        self._respond_error(RouterError(action.status, action.message, action.code, retry_after=retry_after))

    def _end_broken(self, action: vocabulary.EndBroken) -> None:
        leg, client = self._leg, self._client
        assert isinstance(leg, DecodeLeg)  # noqa: S101
        self._telemetry.outcome, self._telemetry.message = "broken_stream", action.message
        self._services.telemetry.metrics.broken_streams()
        ending = leg.ending(f"the decode engine failed: {action.message}")
        if ending is None:
            client.abort()
            return
        client.write(ending)
        self._request.keep_alive = False
        client.end()

    def _free(self, action: vocabulary.Free) -> None:  # noqa: ARG002
        if self._kv_params is not None:
            own = headers.own(self._telemetry.next_id())
            sent = [*own, *self._telemetry.headers, *headers.to_engine(self._request)]
            free_result(self._services, sent, self._kv_params, self._kv_key)

    # ends

    def _respond_error(self, error: RouterError) -> None:
        telemetry = self._telemetry
        telemetry.outcome, telemetry.status, telemetry.message = error.code, error.status, error.message
        self._client.respond_error(error, [telemetry.returned_id()])
        if self._state.phase is Phase.NEW:
            self._release_all()

    def _bug(self) -> None:
        self._telemetry.outcome, self._telemetry.status = "internal", 500
        self._client.fail()
        if self._leg is not None:
            self._leg.leave()
        self._state = replace(self._state, phase=_OVER)
        if not self._telemetry.closed:
            self._release_all()

    def _release_all(self) -> None:
        """Release reservation and queue places, and record the end; once."""
        if self._admission is not None:
            self._admission.release()
        else:
            self._services.queue.leave(self)
        self._services.waiting.discard(self)
        self._services.queue.drop(self)
        self._telemetry.on_end(self._state.failures, self._state.broken)
        self._drop_body()
        self._leg = self._kept = None

    def _drop_body(self) -> None:
        """Forget the prompt: it may be large, and the answer may take long."""
        self._request.drop_body()
        self._kv_params = self._body = None

    # helpers

    def _parsed(self) -> bodies.Parsed:
        assert self._body is not None  # noqa: S101 - it is dropped when the response begins, and no engine is sent anything then
        return self._body

    def _wire(self, endpoint: Endpoint, body: Callable[[str], bytes], own: bytes = b"") -> list[bytes]:
        upstream_id, lines = self._telemetry.next_id(), self._telemetry.lines + self._lines + own
        return headers.post(self._request.path, endpoint.authority, upstream_id, lines, body(upstream_id))

    _ACTIONS: ClassVar[dict[type, Callable[[Completion, Any], None]]] = {
        vocabulary.Prefill: _prefill,
        vocabulary.Decode: _decode,
        vocabulary.Wait: _wait,
        vocabulary.Send: _send,
        vocabulary.Keep: _keep,
        vocabulary.Leave: _leave,
        vocabulary.Eject: _eject,
        vocabulary.RecordFailure: _record_failure,
        vocabulary.ProbeNow: _probe_now,
        vocabulary.RecordSuccess: _record_success,
        vocabulary.Begin: _begin_answer,
        vocabulary.PassOn: _pass_on,
        vocabulary.Fail: _fail,
        vocabulary.End: _end,
        vocabulary.EndBroken: _end_broken,
        vocabulary.Free: _free,
    }
