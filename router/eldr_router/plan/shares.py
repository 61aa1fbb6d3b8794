"""How routers share the limit of every decode engine, so that it holds over all of them at every moment. Pure.

Each router may have so many sequences on an engine as its *bound* says, and the bounds of all routers never exceed the
limit. They split it evenly by their *view*: who the routers are, and the limit. Every change of a router's view begins a
*term*, numbered higher than any it has heard of; members with the same view take the highest. So no router ever comes back
to a view and term that it left. Four rules keep the limit, whatever is delayed or lost:

- A new term lowers the bound at once. It rises only when every other member has said that it has the same view and term:
  from then on none of them goes beyond its share of it.
- What a member has in flight beyond its rights (from before) is subtracted until it is gone.
- A router that starts has nothing until everybody whom its source lists was heard, or is known not to live.
- Rights move from one router to another by grants, subtracted by the giver before they are told. They are cumulative,
  so that a lost or late answer loses nothing, and end with the term: for all members at once, however often they were
  lent on.

A member leaves when its source no longer lists it or its address refuses connections. One that is silent keeps its share,
unless it lapses, see :mod:`.members`. What it had in flight when it was last heard then belongs to nobody for a while. A
router that may have lapsed elsewhere begins anew: one that did nothing for long, or that reads of a view without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from eldr_router.plan.lending import given_up, grants
from eldr_router.plan.loads import STALE_SECONDS
from eldr_router.plan.members import STOPPED_SECONDS, Address, Held, Peer, last_reports
from eldr_router.plan.split import Report, Rights, View

NO_LIMIT = 1 << 20
_FAR = 1 << 20
"""So many terms nobody can have missed. Who followed further would soon be at one that the others cannot read."""


class Shares:
    """One router's side of it.

    Parameters
    ----------
    router : str
        Its id, new with every start.
    limit : int
        Sequences per engine, over all routers.

    Attributes
    ----------
    begun : bool
        Whether this router had its whole part, and nothing took it away since: until then it has none.
    """

    def __init__(self, router: str, limit: int = NO_LIMIT) -> None:
        self.router = router
        self.term = 1
        self.peers: dict[Address, Peer] = {}
        self._listed = False
        self._now = Rights(View((router,), limit))
        self._settled = self.begun = False
        self._before: Rights | None = None  # the last rights that were in full effect
        self._since: dict[View, Rights] = {}  # views since then: each one has lowered the bound
        self._acked: set[str] = set()
        self._newest = 1  # of all terms that were heard of
        self._seq = 0
        self._held = Held()
        self._awake: float | None = None
        self._told: dict[str, int] = {}  # by member: sequences in flight here, as it was told last
        self._leaving = False

    # what is in effect

    @property
    def view(self) -> View:
        """By what this router splits."""
        return self._now.view

    @property
    def alone(self) -> bool:
        """Whether this router has every limit to itself."""
        return self._settled and not self.peers and not self._held.counts and len(self._now.view.members) == 1

    @property
    def awaited(self) -> list[str]:
        """Who must be heard before the bounds are this router's whole share: addresses and ids; empty if nobody."""
        if self._settled:
            return []
        at = {peer.report.router: f"{a[0]}:{a[1]}" for a, peer in self.peers.items() if peer.report}
        silent = [f"{a[0]}:{a[1]}" for a, peer in self.peers.items() if not (peer.resolved or peer.lapsed)]
        others = [at.get(m, m) for m in self.view.members if m != self.router and m not in self._acked]
        missing = [] if self._listed else ["the list of routers"]
        return list(dict.fromkeys(missing + others + ([] if self.begun else silent)))

    def is_stuck(self, now: float) -> bool:
        """Tell whether the bounds wait for somebody who has not answered for long, or does not list this router."""
        if self._settled:
            return False
        lately = now - STALE_SECONDS  # one that has just gone is listed no longer in a moment
        lasting = [peer for peer in self.peers.values() if peer.problem and not peer.lapsed]
        return any(
            not peer.resolved
            or (peer.report is not None and (peer.unlisted is not None or (peer.heard or 0.0) <= lately))
            for peer in lasting
        )

    def kept(self, engine: str, silent: Iterable[Report]) -> int:
        """Return the places of an engine that nobody uses and nobody can give: those of ``silent`` members, and of who left without a word."""
        lost = self.view.limit - sum(self._now.share(member, engine) for member in self.view.members)
        return lost + sum(max(0, r.rights.get(engine, 0) - r.in_flight.get(engine, 0)) for r in silent)

    def bound(self, engine: str) -> int:
        """Return how many sequences this router may have on an engine."""
        if self._settled:
            return max(0, self._now.bound(self.router, engine))
        before = self._before
        if before is None or not self.begun:
            return 0
        # under each of these views the others may have all but this router's part; of a limit that is lower now, the
        # whole difference is missing here until they are known to have given way
        parts = [(before.view.limit, before.bound(self.router, engine))]
        parts += [(rights.view.limit, rights.share(self.router, engine)) for rights in self._since.values()]
        limit = self.view.limit
        least = min(part - max(0, former - limit) for former, part in parts)
        return max(0, min(least, self._now.rights(self.router, engine)))

    def others(self) -> list[Report]:
        """Last reports of the other members."""
        return [report for _, report in last_reports(self.peers, self.view.members)]

    def believed_busy(self, now: float) -> bool:
        """Tell whether a member that was heard lately was last told of sequences in flight here."""
        fresh, _ = self.told(now)
        return any(self._told.get(report.router) for report in fresh)

    def told(self, now: float, *, within: float = math.inf) -> tuple[list[Report], list[Report]]:
        """Last reports of the other members that were heard lately, and of those that have fallen silent.

        That says how far to believe what they have in flight where; their rights do not change with it.

        Parameters
        ----------
        within : float
            Seconds for which one that is silent is believed.
        """
        last = last_reports(self.peers, self.view.members)
        fresh = [report for heard, report in last if now - heard <= STALE_SECONDS]
        return fresh, [report for heard, report in last if STALE_SECONDS < now - heard <= within]

    # what is learned

    def set_limit(self, limit: int) -> None:
        """Take a new limit."""
        self._look(limit)

    def set_addresses(self, addresses: Iterable[Address], in_doubt: Collection[Address] = ()) -> None:
        """Take the addresses of the other routers, and those that the source doubts: what is not listed any more is gone."""
        before = self.peers
        self.peers = {address: before.get(address) or Peer() for address in addresses}
        for address, peer in self.peers.items():
            peer.in_doubt = address in in_doubt
        for address in before.keys() - self.peers.keys():
            self._held.left(address, before[address], self.peers.values())
        self._listed = True
        self._look(self.view.limit)

    def awake(self, now: float) -> None:
        """Take note that this router runs: whoever was stopped for long knows nothing of the others any longer."""
        if self._awake is None:
            return
        if now - self._awake > STOPPED_SECONDS and self.peers:
            for peer in self.peers.values():
                peer.forget(now)
            self._begin_anew()
        self._awake = now

    def pass_time(self, now: float, *, deadlines: bool | None) -> None:
        """Let members lapse, and what they held age.

        Parameters
        ----------
        deadlines : bool or None
            Whether all decode engines refuse late pulls; None: not all have said so yet, and none denies it.
        """
        self._awake = now if self._awake is None else self._awake
        self.awake(now)
        for address, peer in self.peers.items():
            if peer.pass_time(now) and deadlines and (peer.report is not None or not self.begun):
                peer.lapsed = True  # one that was never heard has no rights that a router which has begun did not confirm
                where = self._held.lapsed(address, peer, now)
                if peer.report is None:  # the view stays as it is
                    self._now.held[where] = None
            elif peer.lapsed and deadlines is False and peer.report is not None:
                peer.lapsed = False
                self._held.drop(address)
        for address in self._held.aged(now):
            self._drop(address)
        self._look(self.view.limit)

    def heard(self, address: Address, report: Report, now: float) -> None:
        """Take what another router has answered."""
        peer = self.peers.get(address)
        if peer is None:
            return
        known, member = peer.report, report.router
        if known is not None and known.router == member and report.seq <= known.seq:
            return
        if self.begun and report.term > self._newest + _FAR:
            self.silent(address, f"tells of term {report.term} after {self._newest}")
            return
        peer.resolved, peer.heard, peer.problem, peer.lapsed = True, now, None, False
        self._held.drop(address)  # it says itself what it has in flight, in the view that follows
        if member == self.router:  # the list names this router too
            self._look(self.view.limit)
            return
        knew = known is not None and known.router == member and self.router in known.view.members
        dropped = knew and self.router not in report.view.members
        peer.report = report
        peer.lists(self.router, report, now)
        if dropped:
            self._begin_anew()
        self._newest = max(self._newest, report.term)
        self._look(self.view.limit)
        if report.view == self.view and report.term > self.term:
            self._take(self.view, report.term)
        if report.view == self.view and report.term == self.term:
            self._acked.add(member)
            self._now.got[member] = report.granted
            self._now.told[member] = report.held
            self._now.excess[member] = {
                engine: count - report.rights.get(engine, 0)
                for engine, count in report.in_flight.items()
                if count > report.rights.get(engine, 0)
            }
            self._settle()

    def refused(self, address: Address) -> None:
        """Nobody lives at an address."""
        peer = self.peers.get(address)
        if peer is not None:
            peer.report, peer.resolved, peer.problem, peer.lapsed = None, True, "refuses connections", False
            self._drop(address)
            self._look(self.view.limit)

    def silent(self, address: Address, problem: str) -> None:
        """Somebody may live at an address, who does not answer: what is his stays his, unless he has lapsed."""
        if (peer := self.peers.get(address)) is not None:
            lapsed = "Kubernetes doubts it, so the part of its share that it did not use is divided"
            peer.problem = f"{problem}; {lapsed if peer.lapsed else 'its share stays reserved'}"

    # what is told

    def report(self, asker: str, in_flight: Mapping[str, int], waiting: int) -> Report:
        """Return what the router ``asker`` should know."""
        self._seq += 1
        if asker in self._told:
            self._told[asker] = sum(in_flight.values())
        now = self._now
        rights = {engine: now.rights(self.router, engine) for engine in in_flight}
        granted, got = now.given.get(asker, {}), now.got.get(asker, {})
        held = {where: counts for where, counts in self._held.counts.items() if counts is not None}
        report = Report(
            self.router, self._seq, now.view, self.term, in_flight, rights, dict(granted), got, waiting,
            leaving=self._leaving,
        )  # fmt: skip
        return report._replace(held=held) if held else report

    def give(
        self,
        in_flight: Mapping[str, int],
        waiting: int,
        *,
        admitted: int = 0,
        leaving: bool = False,
    ) -> None:
        """Give rights that are spare here to members that lack room; a router that is leaving gives all of them, and gets none.

        Parameters
        ----------
        waiting : int
            Sequences without an engine.
        admitted : int
            Those of them that have a place reserved on some engine: it is not spare.
        """
        self._leaving = leaving
        others = [report for report in self.others() if report.view == self.view and not report.leaving]
        if not self._settled or not others:
            return
        count = max(1, len(in_flight))
        demand = {r.router: 1 + (sum(r.in_flight.values()) + r.waiting) / count for r in others}
        demand[self.router] = 1 + (sum(in_flight.values()) + waiting) / count
        left = sum(max(0, self.bound(engine) - own) for engine, own in in_flight.items()) - admitted
        for engine, own in in_flight.items():
            free = {self.router: self.bound(engine) - own}
            for r in others:
                if engine in r.rights:
                    coming = self._now.given.get(r.router, {}).get(engine, 0) - r.got.get(engine, 0)
                    free[r.router] = r.rights[engine] + coming - r.in_flight.get(engine, 0)
            chosen = given_up(self.router, free, waiting) if leaving else grants(self.router, free, demand)
            for router, wanted in chosen.items():
                number = max(0, min(wanted, left))
                given = self._now.given.setdefault(router, {})
                given[engine] = given.get(engine, 0) + number
                left -= number

    def _look(self, limit: int) -> None:
        """Bring the view to what is known."""
        ids = {p.report.router for p in self.peers.values() if p.report is not None and not p.lapsed}
        view = View(tuple(sorted({self.router, *ids})), limit)
        if view != self.view:
            self._take(view, self._newest + 1)
        self._settle()

    def _take(self, view: View, term: int) -> None:
        if self._settled:
            self._before, self._since, self._settled = self._now, {}, False
        self._now = self._since[view] = Rights(view, held=dict(self._held.counts))
        self._told = {member: self._told.get(member, 0) for member in view.members}
        self.term, self._newest = term, max(self._newest, term)
        self._acked.clear()

    def _begin_anew(self) -> None:
        """Have nothing, as a newcomer."""
        self.begun = False
        self._take(self.view, self._newest + 1)

    def _drop(self, address: Address) -> None:
        """Nobody's requests at an address are counted any longer."""
        if self._held.counts:
            self._now.held.pop(self._held.drop(address), None)

    def _settle(self) -> None:
        known = self._listed and (
            self.begun or all(peer.resolved or peer.lapsed for peer in self.peers.values())
        )
        others = [member for member in self.view.members if member != self.router]
        if known and self._acked.issuperset(others):
            self._settled = self.begun = True
