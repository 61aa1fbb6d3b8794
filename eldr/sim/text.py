"""Deterministic text that depends on the KV cache's contents.

The "KV cache" of a prompt is its fingerprint. An engine that decodes from a fingerprint other than the prompt's own
produces text that no engine would produce for that prompt.
"""

from __future__ import annotations

import hashlib

_SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "ta", "vo", "zi", "ba", "de", "fu", "go", "hy", "ju", "pe", "sa")


def fingerprint(prompt: str) -> str:
    """Return what stands in for the KV cache of a prompt."""
    return hashlib.blake2b(prompt.encode(), digest_size=16).hexdigest()


def stale(kv: str) -> str:
    """Return what a pull reads from blocks that now belong to another request."""
    return hashlib.blake2b(b"overwritten " + kv.encode(), digest_size=16).hexdigest()


def token(kv: str, index: int) -> str:
    """Return the text of one generated token."""
    raw = hashlib.blake2b(f"{kv} {index}".encode(), digest_size=3).digest()
    return " " + "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in raw)


def completion(prompt: str, tokens: int) -> str:
    """Return the only right output for a prompt."""
    kv = fingerprint(prompt)
    return "".join(token(kv, index) for index in range(tokens))
