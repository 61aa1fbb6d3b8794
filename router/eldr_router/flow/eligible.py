"""Engines for a request: those that may exchange its KV.

Engines that failed it are avoided while others have room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from eldr.contract import ROLE_DECODE, ROLE_PREFILL
from eldr_router.engines.endpoint import Endpoint
from eldr_router.engines.health import Failure
from eldr_router.engines.registry import Registry
from eldr_router.flow.vocabulary import Decode
from eldr_router.http.errors import RouterError
from eldr_router.placement.placer import Placement

Place = Callable[[Collection[Endpoint]], Placement]
"""Places a request on none of these engines; RouterError as of :meth:`eldr_router.placement.placer.Placer.place`."""


def split_group(registry: Registry, limit: int) -> tuple[str, str | None]:
    """Return the key of the engines to split over, and why not.

    The reason is None if the request is split.
    """
    if not registry.endpoints(ROLE_PREFILL):
        return "", "no_prefill"
    group = registry.group(limit)
    if group is None:
        return "", None
    return group.key, None if group.has_prefill else "kv_key"


def place_avoiding(
    place: Place, action: Decode, registry: Registry, key: str, failures: tuple[Failure, ...]
) -> Placement:
    """Place a request.

    Parameters
    ----------
    place : Place
    action : Decode
        Which engines refused it, or failed it.
    registry : Registry
    key : str
        Of the engine whose KV it brings.
    failures : tuple of Failure
        Attempts given up.
    """
    incompatible = registry.incompatible(ROLE_DECODE, key)
    choices = [action.avoid]
    if action.broken or incompatible:
        away = action.avoid | action.broken
        # without KV to pull any engine will do
        then = [action.avoid | incompatible] if action.kv else [away, action.avoid]
        choices = [*dict.fromkeys([away | incompatible, *then])]
    for excluded in choices[:-1]:
        try:
            return place(excluded)
        except RouterError:
            pass
    try:
        return place(choices[-1])
    except RouterError as error:
        if action.avoid and failures and error.status == 503:
            message = f"no decode engine accepts connections; the last one: {failures[-1].message}"
            raise RouterError(502, message, "upstream_failed") from None
        raise
