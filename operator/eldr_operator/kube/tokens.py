"""Bearer tokens of the routers' admin ports, derived from one key, so that the operator reads no Secret but that key."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from eldr import contract
from eldr_operator.errors import ApiError, OperatorError
from eldr_operator.kube.api import Api

_KEY = "key"
_KEY_BYTES = 32


class Tokens:
    """Derives tokens.

    Parameters
    ----------
    key : bytes
        Of this operator and those that take its place.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, namespace: str, deployment: str) -> str:
        """Return the token of a deployment: the same for one that is deleted and created again, whose pods may overlap."""
        made = hmac.new(self._key, f"{namespace}/{deployment}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(made.digest()).decode().rstrip("=")


async def load(api: Api, namespace: str, name: str) -> Tokens:
    """Read the key, or make one where there is none.

    Raises
    ------
    ApiError
        If it cannot be read or made.
    OperatorError
        If there is nothing in it.
    """
    where = f"Secret {namespace}/{name}"
    try:
        secret = await api.get("Secret", namespace, name) or await _made(api, namespace, name)
    except ApiError as error:
        said = f"{where}, the operator's own key: {error.message or error}"
        raise ApiError(error.status, error.reason, said) from error
    if not (key := read(secret, _KEY)):
        raise OperatorError(
            f"{where}, the operator's own key, has nothing readable under {_KEY}; delete it, and a new one is made"
        )
    return Tokens(key)


def read(secret: Mapping[str, Any] | None, key: str) -> bytes:
    """Return what a Secret holds under a key; empty where that is nothing, or cannot be read."""
    try:
        return base64.b64decode(((secret or {}).get("data") or {})[key], validate=True)
    except (KeyError, TypeError, binascii.Error):
        return b""


async def _made(api: Api, namespace: str, name: str) -> Mapping[str, Any] | None:
    key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    labels = {contract.LABEL_PART_OF: "eldr", contract.LABEL_MANAGED_BY: contract.FIELD_MANAGER}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    try:
        return await api.create(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {_KEY: key}}
        )
    except ApiError as error:
        if error.status != 409:
            raise
    return await api.get("Secret", namespace, name)  # another operator was faster
