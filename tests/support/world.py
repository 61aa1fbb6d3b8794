"""Routers at addresses that split a limit, and letters between them that are delayed, lost or answered."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

from eldr_router.plan.members import LAPSE_SECONDS, STOPPED_SECONDS, Address
from eldr_router.plan.shares import Shares
from eldr_router.plan.split import Report

ENGINES = ("d0", "d1", "d2")


@dataclass
class Node:
    """A router process."""

    shares: Shares
    stopped: bool = False
    flights: Counter[str] = field(default_factory=Counter)
    questions: itertools.count = field(default_factory=itertools.count)
    latest: dict[Address, int] = field(default_factory=dict)


@dataclass
class Letter:
    """A question on its way, or its answer."""

    node: Node
    to: Address
    number: int
    answered: bool = False
    report: Report | None = None
    lost: bool = False


class World:
    """Routers at addresses, letters between them."""

    def __init__(self, limit: int = 4) -> None:
        self.limit = limit
        self.nodes: dict[Address, Node] = {}
        self.listed: set[Address] = set()
        self.letters: list[Letter] = []
        self.ids = itertools.count()
        self.clock = 0.0

    def start(self, place: int) -> Node:
        address = ("r", place)
        node = self.nodes[address] = Node(Shares(f"{place}.{next(self.ids)}", self.limit))
        node.shares.pass_time(self.clock, deadlines=None)
        self.listed.add(address)
        self.list(address)
        return node

    def list(self, address: Address) -> None:
        self.nodes[address].shares.set_addresses(self.listed - {address})

    def ask(self, address: Address, to: Address) -> None:
        node = self.nodes[address]
        if to in node.shares.peers:
            self.letters.append(Letter(node, to, next(node.questions)))

    def hear(self, address: Address, to: Address) -> None:
        """Ask, and have the answer at once."""
        if to in self.nodes[address].shares.peers:
            self.ask(address, to)
            letter = self.letters[-1]
            self.step(letter)
            self.step(letter)

    def alive(self, node: Node) -> bool:
        return any(node is other for other in self.nodes.values())

    def step(self, letter: Letter) -> None:
        """A question arrives, or its answer does."""
        node, shares = letter.node, letter.node.shares
        if not letter.answered:
            target = self.nodes.get(letter.to)
            letter.lost = target is not None and target.stopped
            if target is not None and not target.stopped:
                letter.report = target.shares.report(shares.router, flights(target), 0)
            letter.answered = True
            return
        self.letters.remove(letter)
        if not self.alive(node) or node.stopped:
            return
        if letter.lost:
            shares.silent(letter.to, "does not answer")
            return
        known = shares.peers.get(letter.to)
        fresh = letter.number > node.latest.get(letter.to, -1)
        same = known and known.report and letter.report and known.report.router == letter.report.router
        if not fresh and not same:
            return  # one connection answers in order: what a dead process said never comes after its successor's words
        node.latest[letter.to] = max(letter.number, node.latest.get(letter.to, -1))
        if letter.report is None:
            shares.refused(letter.to)
        else:
            self.clock += 1e-3
            shares.heard(letter.to, letter.report, self.clock)

    def admit(self, node: Node, engine: str, sequences: int = 1) -> bool:
        if node.stopped:
            return False
        node.shares.awake(self.clock)
        if node.flights[engine] + sequences > node.shares.bound(engine):
            return False
        node.flights[engine] += sequences
        total = sum(other.flights[engine] for other in self.nodes.values())
        assert total <= node.shares.view.limit, f"{total} on {engine}"
        return True

    def running(self) -> dict[Address, Node]:
        return {address: node for address, node in self.nodes.items() if not node.stopped}

    def stop(self, address: Address) -> None:
        """A process is stopped just after it has read the list, and everybody has heard it."""
        self.list(address)
        for other in self.running():
            if other != address:
                self.hear(other, address)
        self.nodes[address].stopped = True

    def lapse(self, seconds: float = LAPSE_SECONDS + 1) -> None:
        """Time passes, and Kubernetes doubts whoever is stopped."""
        stopped = self.nodes.keys() - self.running().keys()
        steps = math.ceil(2 * seconds / STOPPED_SECONDS)
        for step in range(steps + 1):
            self.clock += seconds / steps if step else 0
            for address, node in self.running().items():
                node.shares.set_addresses(set(node.shares.peers), stopped - {address})
                node.shares.pass_time(self.clock, deadlines=True)

    def wake(self, address: Address) -> None:
        self.nodes[address].stopped = False

    def talk(self, rounds: int = 8) -> None:
        """Messages flow again: everybody hears everybody, and knows list and limit."""
        self.letters.clear()
        for _ in range(rounds):
            for address, node in self.running().items():
                self.list(address)
                node.shares.set_limit(self.limit)
                for to in self.listed:
                    self.ask(address, to)
            while self.letters:
                self.step(self.letters[0])

    def lend(self, busy: Node, rounds: int = 12) -> None:
        """One router takes all that it may have, and the others give it what they can."""
        for _ in range(rounds):
            for engine in ENGINES:
                self.fill(busy, engine)
            for node in self.nodes.values():
                node.shares.give(flights(node), 0)
            self.talk(1)

    def fill(self, node: Node, engine: str) -> None:
        """A router takes all that it may have of an engine."""
        while self.admit(node, engine):
            pass

    def use_up(self, *nodes: Node) -> None:
        """Routers take in turn all that they may have of the first engine, finish it, and hear each other."""
        for node in nodes:
            self.fill(node, ENGINES[0])
        for node in nodes:
            node.flights.clear()
        self.talk()

    def blip(self, address: Address) -> None:
        """A router reads another limit for a moment: its term is a new one, and its view is not."""
        limit = self.nodes[address].shares.view.limit
        self.nodes[address].shares.set_limit(limit + 1)
        self.nodes[address].shares.set_limit(limit)

    def bounds(self, engine: str) -> list[int]:
        return [node.shares.bound(engine) for node in self.nodes.values()]


def flights(node: Node) -> dict[str, int]:
    return {engine: node.flights[engine] for engine in ENGINES}
