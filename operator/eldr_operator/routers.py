"""What routers say of themselves, read from their admin ports."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from eldr import contract
from eldr_operator.models import CentroidSet
from eldr_operator.observe import RouterPod

_TIMEOUT = httpx.Timeout(3.0, connect=1.0)


@dataclass(frozen=True, slots=True)
class RouterView:
    """One ready router, as the last look at it saw it.

    Parameters
    ----------
    pod : RouterPod
    problem : str
        Why nothing is known; empty if the rest is.
    policy : str
    active, staged : str
        Digests of the sets it uses and holds ready; empty for none.
    refused : mapping of str to str
        Digest of a set it cannot load to the reason.
    samples : int
        Records in its log.
    """

    pod: RouterPod
    problem: str = ""
    policy: str = ""
    active: str = ""
    staged: str = ""
    refused: Mapping[str, str] | None = None
    samples: int = 0

    @classmethod
    def of(cls, pod: RouterPod, state: Mapping[str, Any]) -> Self:
        """Read ``/eldr/v1/state``, see :data:`eldr.contract.STATE_VERSION`."""
        return cls(
            pod=pod,
            policy=str(state["policy"]),
            active=str((state["active"] or {}).get("digest", "")),
            staged=str((state["staged"] or {}).get("digest", "")),
            refused={entry["digest"]: str(entry["reason"]) for entry in state["refused"]},
            samples=int(state["samples"]),
        )

    def holds(self, wanted: CentroidSet) -> bool:
        """Tell whether the router could switch to a set at once, or has."""
        return wanted.digest in {self.active, self.staged}

    def refusal(self, wanted: CentroidSet) -> str | None:
        """Return why the router cannot load a set."""
        return (self.refused or {}).get(wanted.digest)


async def look(client: httpx.AsyncClient, pods: Sequence[RouterPod], token: str) -> list[RouterView]:
    """Read the state of routers, all at once. A router that does not answer is a view with a problem."""
    return list(await asyncio.gather(*(_look(client, pod, token) for pod in pods)))


async def _look(client: httpx.AsyncClient, pod: RouterPod, token: str) -> RouterView:
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    url = f"http://{host}:{contract.PORT_ADMIN}{contract.PATH_STATE}"
    try:
        answer = await client.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT)
        answer.raise_for_status()
        return RouterView.of(pod, answer.json())
    except httpx.HTTPStatusError as error:
        return RouterView(pod, problem=f"answers {error.response.status_code}")
    except httpx.HTTPError as error:
        # The class, not the text: texts hold ports and errno, and would rewrite the status.
        return RouterView(pod, problem=f"does not answer ({type(error).__name__})")
    except (ValueError, KeyError, TypeError, AttributeError):
        return RouterView(pod, problem="answers what this operator cannot read; are the versions the same?")
