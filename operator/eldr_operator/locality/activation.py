"""Which centroid set routers use next: stage, wait for all, then move the epoch. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from eldr import admin_tls, contract
from eldr_operator.conditions import CENTROIDS_ACTIVE, ROLLED_BACK, Condition
from eldr_operator.fits.candidates import candidates, is_for_model, pinned
from eldr_operator.locality.router_view import RouterView
from eldr_operator.locality.routing import Table
from eldr_operator.models import CentroidSet, EldrDeployment, EldrFit


@dataclass(frozen=True, slots=True)
class Decision:
    """What to write and what to say.

    Parameters
    ----------
    condition : Condition
        CentroidsActive.
    is_waiting : bool
        Whether routers should be asked again soon.
    acks : int
        Ready routers that use the active set.
    refused : mapping of str to str
        Digest of the set that was to be next and that no router can load, and why: it is not to be tried again by itself.
    """

    table: Table
    condition: Condition
    is_waiting: bool
    acks: int
    refused: Mapping[str, str] = field(default_factory=dict)


def decide(
    cr: EldrDeployment,
    fits: Sequence[EldrFit],
    table: Table,
    routers: Sequence[RouterView],
    now: datetime,
    *,
    blocked: Collection[str] = (),
    unreached_since: datetime | None = None,
) -> Decision:
    """Take one step of an activation, from the table that the routing ConfigMap has.

    Parameters
    ----------
    routers : sequence of RouterView
        Ready routers that are not ending.
    blocked : collection of str
        Digests of sets that were rolled back.
    unreached_since : datetime or None
        Since when no router has answered; None if one does, or there is none.
    """
    target, pin_problem = _target(cr, fits, table, blocked)
    if target is not None and _is_hopeless(cr, table, target, routers, now):
        after, why = table.but(staged=None, staged_at=None), _refusals(routers, target)
        refused = {target.digest: f"no router can load it: {why}"}
        return Decision(
            after, _condition(cr, table, fits, routers, now), True, _acks(after, routers), refused
        )
    if target is None and (why := _is_unfit(cr, fits, table, blocked)):
        after = Table(epoch=table.epoch + 1, activated_at=now, reason=why)
    else:
        after = _step(cr, table, target, routers, now, blocked=blocked)
    condition = pin_problem or _condition(cr, after, fits, routers, now)
    if pin_problem and after.active is None:
        condition = pin_problem._replace(status="False")
    if unreached_since is not None and now - unreached_since >= _timeout(cr):
        condition = _unreached(cr, routers)
    return Decision(after, condition, _is_waiting(cr, after, routers, now), _acks(after, routers))


def _refusals(routers: Sequence[RouterView], wanted: CentroidSet) -> str:
    """Say which routers cannot load a set, and why."""
    refusals = [(router.pod.name, router.refusal(wanted)) for router in routers]
    return "; ".join(f"router {name}: {reason}" for name, reason in refusals if reason)


def _acks(table: Table, routers: Sequence[RouterView]) -> int:
    active = table.active
    return sum(router.active == active.digest for router in routers) if active else 0


def _is_hopeless(
    cr: EldrDeployment, table: Table, target: CentroidSet, routers: Sequence[RouterView], now: datetime
) -> bool:
    """Tell whether every router that answers has refused the set for long enough; one that a person has pinned is kept."""
    if table.staged is None or table.staged.digest != target.digest or table.staged_at is None:
        return False
    if cr.spec.centroids.pin == target.fit or now - table.staged_at < _timeout(cr):
        return False
    answering = [router for router in routers if not router.problem]
    return bool(answering) and all(router.refusal(target) for router in answering)


def _says(status: str, reason: str, message: str) -> Condition:
    return Condition(CENTROIDS_ACTIVE, status, reason, message)


def _timeout(cr: EldrDeployment) -> timedelta:
    return timedelta(seconds=cr.spec.centroids.ack_timeout_seconds)


def _is_waiting(cr: EldrDeployment, table: Table, routers: Sequence[RouterView], now: datetime) -> bool:
    """Tell whether routers will soon answer otherwise: some still load, or switch."""
    if table.staged is not None and table.staged_at is not None:
        return bool(routers) and now - table.staged_at < _timeout(cr)
    active = table.active
    return active is not None and any(
        router.active != active.digest
        and router.refusal(active) is None
        and not _is_late(cr, table, router, now)
        for router in routers
    )


def _target(
    cr: EldrDeployment, fits: Sequence[EldrFit], table: Table, blocked: Collection[str]
) -> tuple[CentroidSet | None, Condition | None]:
    """Return the set that should be active, or None to keep what is, and what is wrong with the pin."""
    pin = cr.spec.centroids.pin
    if pin:
        named = pinned(cr, fits, table)
        return named, None if named is not None else _pin_problem(pin, fits)
    if best := candidates(cr, fits, table, blocked):
        return best[-1].accepted_set, None
    active, previous = table.active, table.previous
    if active is None or active.digest not in blocked or previous is None or previous.digest in blocked:
        return None, None
    return (previous if previous.k == cr.spec.decode.replicas else None), None


def _is_unfit(cr: EldrDeployment, fits: Sequence[EldrFit], table: Table, blocked: Collection[str]) -> str:
    """Return why the active set must not serve, though there is no other."""
    active = table.active
    if active is None or cr.spec.centroids.pin:
        return ""
    if active.digest in blocked:
        return ROLLED_BACK
    other = any(fit.name == active.fit and not is_for_model(cr, fit) for fit in fits)
    return "ModelChanged" if other else ""


def _pin_problem(pin: str, fits: Sequence[EldrFit]) -> Condition:
    accepted = sorted(fit.name for fit in fits if fit.accepted_set)
    remedy = "remove spec.centroids.pin until a fit is accepted"
    if accepted:
        remedy = f"pin one of: {', '.join(accepted)}"
    for fit in fits:
        if fit.name == pin:
            text = f"spec.centroids.pin: EldrFit {pin} is {fit.state[1]}, not Accepted; {remedy}"
            return _says("True", "PinNotAccepted", text)
    return _says("True", "PinNotFound", f"spec.centroids.pin: there is no EldrFit {pin} here; {remedy}")


def _step(
    cr: EldrDeployment,
    table: Table,
    target: CentroidSet | None,
    routers: Sequence[RouterView],
    now: datetime,
    *,
    blocked: Collection[str],
) -> Table:
    if target is None or (table.active is not None and target.digest == table.active.digest):
        return table.but(staged=None, staged_at=None)
    if table.staged is None or table.staged.digest != target.digest or table.staged_at is None:
        return table.but(staged=target, staged_at=now)
    loaded = sum(router.holds(target) for router in routers)
    if loaded == 0 or (loaded < len(routers) and now - table.staged_at < _timeout(cr)):
        return table
    by_hand = cr.spec.centroids.pin == target.fit
    rolled_back = not by_hand and table.active is not None and table.active.digest in blocked
    reason = "Pinned" if by_hand else ROLLED_BACK if rolled_back else "Accepted"
    if loaded < len(routers):
        reason = "AckTimeout"
    return Table(
        epoch=table.epoch + 1,
        active=target,
        previous=table.active,
        activated_at=now,
        staged=None,
        reason=reason,
    )


def _unreached(cr: EldrDeployment, routers: Sequence[RouterView]) -> Condition:
    remedy = f"let the operator reach port {contract.PORT_ADMIN} of the routers (docs/reference/operator.md, who may reach pods)"
    if any(router.refuses_token for router in routers):
        name = contract.admin_secret_name(cr.name)
        remedy = (
            f"Secret {name} has another token than this operator's. Delete it (kubectl delete secret {name} -n {cr.namespace}): "
            "the operator creates it again, and routers read it within about two minutes, without a restart. "
            "Or let the operator read it (chart value rbac.readSecrets)"
        )
        return _says("Unknown", "RouterTokenRefused", f"{_lacking(routers)}; requests are served; {remedy}")
    if (tls := cr.spec.router.admin_tls) and any(router.is_distrusted for router in routers):
        remedy = (
            f"Secret {tls.secret_name} needs a certificate for {admin_tls.server_name(cr.name, cr.namespace)}, and"
            f" {admin_tls.AUTHORITY_KEY} of ConfigMap {tls.authority_config_map} the certificate of who signed it"
        )
    text = f"nothing is known of the routers; they go on with what they have: {_lacking(routers)}; {remedy}"
    return _says("Unknown", "RoutersUnreachable", text)


def _condition(
    cr: EldrDeployment, table: Table, fits: Sequence[EldrFit], routers: Sequence[RouterView], now: datetime
) -> Condition:
    active, staged = table.active, table.staged
    serving = "False" if active is None else "True"
    if complaints := [f"{router.pod.name}: {router.complaint}" for router in routers if router.complaint]:
        text = f"the last good table stays in effect; {'; '.join(complaints)}"
        return _says(serving, "RouterComplaint", text)
    if cr.spec.router.policy not in (contract.POLICY_ELDR, contract.POLICY_MARGINAL):
        text = f"spec.router.policy {cr.spec.router.policy} does not use centroids; set it to ELDR or MarginalUnion to use them"
        return _says("False", "PolicyIgnoresCentroids", text)
    if staged is not None and table.staged_at is not None:
        the_set = f"the set of EldrFit {staged.fit}"
        if refused := _refusals(routers, staged):
            return _says(serving, "Refused", f"{the_set} cannot be loaded: {refused}")
        waiting = [router for router in routers if not router.holds(staged)]
        if waiting and now - table.staged_at >= _timeout(cr):
            return _says(serving, "AckTimeout", f"no router has loaded {the_set}: {_lacking(waiting)}")
        text = f"routers are loading {the_set}" if routers else f"{the_set} waits for a ready router"
        return _says(serving, "Staging", text)
    if active is None:
        return _without_set(cr, fits)
    return _active_condition(cr, table, active, routers, now)


def _without_set(cr: EldrDeployment, fits: Sequence[EldrFit]) -> Condition:
    """Say what happens until there is a set: a policy that learns its prior lacks nothing."""
    follows = _follows(cr, fits)
    if cr.spec.router.policy == contract.POLICY_MARGINAL:
        text = f"no centroid set is needed: routers learn the prior while they place requests; {follows}"
        return _says("False", "LearnedPrior", text)
    text = f"no centroid set yet: requests go to the engine with the fewest in flight; {follows}"
    return _says("False", "Bootstrapping", text)


def _follows(cr: EldrDeployment, fits: Sequence[EldrFit]) -> str:
    if cr.spec.refit.suspend == "Enabled":
        return "spec.refit.suspend is Enabled: create an EldrFit, or set it to Disabled"
    if running := [fit.name for fit in fits if not fit.is_finished]:
        return f"EldrFit {running[0]} is about to make one"
    if not fits:
        return f"the first fit runs when routers hold {cr.spec.refit.min_samples} log records"
    last = max(fits, key=lambda fit: (fit.finished_at, fit.name))
    return (
        f"EldrFit {last.name} ended {last.blocked or last.state[1]} (kubectl describe ef {last.name}); it is tried again, at first"
        " after 5 minutes, later after up to 6 hours"
    )


def _active_condition(
    cr: EldrDeployment, table: Table, active: CentroidSet, routers: Sequence[RouterView], now: datetime
) -> Condition:
    the_set = f"the set of EldrFit {active.fit}"
    if not routers:
        return _says("Unknown", "NoReadyRouters", f"no router is ready to use {the_set}")
    if refused := _refusals(routers, active):
        text = f"the active set of EldrFit {active.fit} cannot be loaded: {refused}"
        return _says("False", "Refused", text)
    others = [router for router in routers if router.active != active.digest]
    if late := [router for router in others if _is_late(cr, table, router, now)]:
        return _says("False", "AckTimeout", f"{the_set} is not used by {_lacking(late)}")
    mismatch = ""
    if active.k != cr.spec.decode.replicas:
        by = "expected step time" if cr.spec.router.policy == contract.POLICY_MARGINAL else "load"
        mismatch = (
            f"it has k={active.k} but there are {cr.spec.decode.replicas} decode replicas; slots without a centroid"
            f" are chosen by {by}"
        )
    if cr.spec.centroids.pin:
        text = f"{the_set} is pinned; newer ones are not activated"
        return _says("True", "Pinned", "; ".join(filter(None, (text, mismatch))))
    if mismatch:
        text = f"{the_set} is active; {mismatch} until a fit for that number is accepted"
        return _says("True", "KMismatch", text)
    return _says("True", "Active", f"{the_set} is active")


def _is_late(cr: EldrDeployment, table: Table, router: RouterView, now: datetime) -> bool:
    since = max(filter(None, (table.activated_at, router.pod.ready_since)), default=None)
    return since is None or now - since >= _timeout(cr)


def _lacking(routers: Sequence[RouterView]) -> str:
    return ", ".join(
        f"router {router.pod.name} ({router.problem})" if router.problem else f"router {router.pod.name}"
        for router in routers
    )
