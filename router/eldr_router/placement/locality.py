"""Expected experts of each decode engine's batch, for MarginalUnion."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from functools import lru_cache

from eldr.centroids import CentroidSet
from eldr.core.policy import Situation
from eldr.core.profiles import Profiles
from eldr.core.tolls import Tolls
from eldr.core.union import MOST_LAYERS, Request, Shape, Stay, Unions, spread
from eldr.wire import ExpertCounts
from eldr_router.engines.endpoint import Endpoint
from eldr_router.placement.choice import Candidates, Decision
from eldr_router.placement.saving import Savings
from eldr_router.placement.signature import Signature
from eldr_router.placement.step_times import StepTimes
from eldr_router.placement.traffic import Traffic

log = logging.getLogger(__name__)

_FOREIGN = 20
"""Consecutive signatures of another shape after which engines serve another model."""
_MOST_FOREIGN = 1280
_MORE = 4
"""Each change of the model multiplies that number, up to ``_MOST_FOREIGN``: two models that alternate do not reset the state all the time."""
_SETTLED = 1000
"""Consecutive signatures of the known shape after which the number is ``_FOREIGN`` again."""


class Locality:
    """What a router knows of experts: unions, step times, savings, traffic.

    Parameters
    ----------
    most_layers : int
        How many layers are looked at, as a sample of all.

    Attributes
    ----------
    unions : Unions or None
        None until the first signature shows the model's shape.
    step_times : StepTimes
        Each engine's step-time model, learned under every policy.
    savings : Savings
        What placement saves, measured under every policy.
    traffic : Traffic
        How similar requests are to the active set, counted under every policy.
    profiles : Profiles or None
        The learned prior, used while no centroid set is active; it begins with the unions.
    tolls : Tolls
        For the active centroid set, or for the profiles without one.
    n_experts : int or None
        Experts per layer of the model, by the last signature.
    """

    def __init__(self, most_layers: int = MOST_LAYERS) -> None:
        self.unions: Unions | None = None
        self.step_times = StepTimes()
        self.savings = Savings()
        self.traffic = Traffic()
        self.profiles: Profiles | None = None
        self.tolls = Tolls()
        self.n_experts: int | None = None
        self._most_layers = most_layers
        self._centroids: CentroidSet | None = None
        self._wanted = False
        self._foreign = self._matching = 0  # consecutive signatures of another shape, and of the known one
        self._patience = _FOREIGN
        self._begun = 0

    @property
    def generation(self) -> str:
        """The version of reports to other routers; a new one voids the old."""
        return f"{self._begun}.{0 if self.unions is None else self.unions.forgotten}"

    def follow(self, centroids: CentroidSet | None, *, wanted: bool) -> None:
        """Take the active centroid set, and whether the policy asks for unions.

        Requests that began under another set are looked at through the layers of this one: two sets of layers in turn would
        begin anew with every request.
        """
        if centroids is not self._centroids or not wanted:
            self.tolls = Tolls()  # a new set shares requests out evenly by itself
            self.profiles = None
        self._centroids, self._wanted = centroids, wanted
        if not wanted:
            self.unions = None
        elif centroids is None and self.profiles is None and self.unions is not None:
            self.profiles = Profiles(self.unions.shape.cells)

    def notice(self, signature: Signature) -> None:
        """Learn the model's shape; begin anew if engines serve another model."""
        counts = signature.counts
        if counts is None or not counts.tokens:
            return
        self.n_experts = counts.counts.shape[1]
        if not self._wanted:
            return
        shape = self._shape(counts)
        known = self.unions
        if known is not None and known.shape == shape:
            self._foreign = 0
            self._matching += 1
            if self._matching >= _SETTLED:
                self._patience = _FOREIGN
            return
        self._matching = 0
        if known is not None and known.shape[:3] != shape[:3]:
            if self._foreign < self._patience:
                self._foreign += 1
                return
            self._patience = min(_MOST_FOREIGN, _MORE * self._patience)
        log.info(
            "placing by expected unions of %d layers x %d experts, of layers %s",
            shape.n_layers, shape.n_experts, ", ".join(map(str, shape.layers)),
        )  # fmt: skip
        # what is in flight on the old one is unknown to the new one, and counts as its mean until it is over
        self.unions, self._foreign = Unions(shape), 0
        if self._centroids is None:
            self.profiles, self.tolls = Profiles(shape.cells), Tolls()
        self._begun += 1

    def expect(self, signature: Signature, endpoints: Sequence[Endpoint], situation: Situation) -> Candidates:
        """Return what is known of engines, with what to expect of a request there."""
        unions = self.unions or self._first(signature)
        request, reason = _request(signature, unions)
        if unions is None:
            return Candidates(endpoints, situation, reason=reason)
        engines = [endpoint.name for endpoint in endpoints]
        outlook = unions.outlook(request, engines, situation.in_flight, situation.sequences)
        step_times = self.step_times.of(engines, unions.shape.n_experts)
        learned, profiles = None, self.profiles
        numbers: Sequence[int] = ()
        if profiles is not None and request is not None:
            learned, numbers = profiles.similarity(request.share, engines), profiles.numbers(engines)
        tolls = self.tolls.of((situation.slots or ()) if learned is None else numbers)
        situation = situation._replace(outlook=outlook, step_times=step_times, tolls=tolls)
        return Candidates(endpoints, situation, request, learned, numbers, reason)

    def join(self, engine: str, request: Request | None, sequences: int) -> Stay | None:
        """Let a request join an engine's batch."""
        if request is None or self.unions is None:
            return None
        return self.unions.join(engine, request, sequences)

    def settle(self, decision: Decision) -> None:
        """Let prior and tolls learn from a request that goes where it was decided."""
        favourite, candidates = self.tolls.settle(decision.situation), decision.candidates
        request = candidates.request
        if self.profiles is not None and self.unions is not None and request is not None:
            best = None if favourite is None else candidates.endpoints[favourite].name
            # of the version that it begins: the present one may have been reported already
            self.profiles.learn(best, decision.endpoint.name, request.share, self.unions.version + 1)

    def retain(self, engines: Collection[str]) -> None:
        """Forget engines that are gone."""
        if self.unions is not None:
            self.unions.retain(engines)
        if self.profiles is not None:
            self.profiles.retain(engines)
            self.tolls.retain(self.profiles.numbers(list(engines)))

    def _first(self, signature: Signature) -> Unions | None:
        """Return what the first signature begins, for one that is only asked about."""
        counts = signature.counts
        if counts is None or not counts.tokens or not self._wanted:
            return None
        return Unions(self._shape(counts))

    def _shape(self, counts: ExpertCounts) -> Shape:
        return _shape(*counts.shape, counts.top_k, self._centroids, self._most_layers)


def _request(signature: Signature, unions: Unions | None) -> tuple[Request | None, str]:
    """Return what a request adds to unions, and why it is known or not."""
    counts = signature.counts
    if counts is None:
        return None, signature.missing
    if not counts.tokens:
        return None, "zero_vector"
    if unions is None or (*counts.shape, counts.top_k) != unions.shape[:3]:
        return None, "wrong_shape"
    return unions.request(counts.counts, counts.tokens), "union"


@lru_cache(maxsize=4)  # it holds on to centroid sets
def _shape(layers: int, experts: int, top_k: int, centroids: CentroidSet | None, most: int) -> Shape:
    """Return the shape to look at: the layers that signatures are made of, if they are of this model."""
    fits = centroids is not None and (centroids.n_layers, centroids.n_experts) == (layers, experts)
    kept = centroids.kept if fits and centroids is not None else range(layers)
    return Shape(layers, experts, top_k, spread(kept, most))
