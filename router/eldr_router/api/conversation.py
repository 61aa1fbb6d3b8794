"""Where a conversation's beginning ends, which all its turns share. Pure."""

from __future__ import annotations

import json
import re

_MESSAGE = json.JSONDecoder()
_BYTES, _MESSAGES = 1 << 16, 256
_BETWEEN = re.compile(r"[ \t\r\n,]*")


def conversation_prefix(messages: memoryview) -> int:
    """Return the bytes up to the end of the user's first message.

    0 if there is none.

    Messages are read one by one: long conversations are not read to their end.
    """
    try:
        text = str(messages[:_BYTES], "utf-8", "replace")
        at = 1
        for _ in range(_MESSAGES):
            message, at = _MESSAGE.raw_decode(text, _BETWEEN.match(text, at).end())  # type: ignore[union-attr]
            if isinstance(message, dict) and message.get("role") == "user":
                return len(text[:at].encode())
    except (ValueError, RecursionError):
        pass  # none within so many bytes, or none at all
    return 0
