"""Fields of a body: the router reads those that it knows. Pure.

It reads none beyond its limit.
"""

from __future__ import annotations

import bisect
import math
from functools import cache
from typing import Any

import msgspec

from eldr_router.api import cost
from eldr_router.http.errors import RouterError, bad_request

MOST_ITEMS = 8192
"""Messages, tools, or prompts of a list."""
_MOST_FIELDS = 256
FEW_BYTES = 1 << 16
"""In so many there are never too many fields, or messages, to be counted afterwards."""
_LARGE = 8 << 20
_LONGEST_SCALAR = 64
_LONGEST = {"tools": 4 << 20, "functions": 4 << 20, "vllm_xargs": 1 << 18, "stream_options": 1 << 12}
_LEAST = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 0, "n": 1, "best_of": 1}
_MOST = {"n": 1 << 14, "best_of": 1 << 14}
"""``VLLM_MAX_N_SEQUENCES`` of vLLM; other numbers are limits that clients may set as high as a number goes."""
_HIGHEST = (1 << 63) - 1
_SCALARS = frozenset((*_LEAST, "echo", "use_beam_search", "prompt_logprobs", "stream"))
_READ = _SCALARS | _LONGEST.keys()
_TEXTS = frozenset(("messages", "prompt", "prompt_embeds", "model"))
_NUMBER = frozenset(b"-0123456789")
Fields = dict[str, msgspec.Raw]


class _Name(str):
    """A field's name that is counted as it is decoded."""

    __slots__ = ()


class _Counter:
    """Ends decoding at the first field too many."""

    left = 0

    def __call__(self, kind: type, name: str) -> _Name:  # noqa: ARG002
        """Take a name."""
        self.left -= 1
        if self.left < 0:
            raise ValueError
        return _Name(name)


_counter = _Counter()
_FIELDS = msgspec.json.Decoder(Fields)
_COUNTED = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_counter)
_VALUE = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()
_PLACES = range(MOST_ITEMS)


@cache
def _items() -> msgspec.json.Decoder[Any]:
    """Return what reads the one type of list whose decoding ends at the first item too many: 5 MiB that few routers need."""
    places = [(_place(number), msgspec.Raw, None) for number in _PLACES]
    return msgspec.json.Decoder(
        msgspec.defstruct("Items", places, array_like=True, forbid_unknown_fields=True)
    )


def _place(number: int) -> str:
    return f"item{number}"


def read(raw: bytes, max_body: int) -> tuple[Fields, dict[str, Any]]:
    """Return a body's fields as they came, and the values that matter.

    Of ``tools`` and ``functions`` the value is whether there are any. Objects that were looked into are written anew:
    what was read is what is sent.

    Raises
    ------
    RouterError
        400 if it is no JSON object, or a field is none that an engine should see.
    """
    fields = _decode(raw, max_body)
    known: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _SCALARS:
            known[name] = scalar(name, value)
        elif name in _LONGEST:
            known[name] = _structured(name, value)
        elif name not in _TEXTS:
            _check_number(name, value)
    for name, value in known.items():
        if name in _LEAST:
            none = bool(known.get("echo")) and name.startswith("max_")
            check_integer(name, value, least=0 if none else _LEAST[name])
        elif name in _LONGEST and isinstance(value, dict):
            fields[name] = msgspec.Raw(_ENCODER.encode(value))
    return fields, known


def count(items: memoryview) -> int:
    """Return how many items a list has, up to one more than the limit.

    The limit is :data:`MOST_ITEMS`.
    """
    if len(items) > _LARGE and bytes(items[:256]).translate(None, b" \t\r\n")[:2] == b'["':
        texts = cost.tally(items, ord('"')) // 2
        if texts <= MOST_ITEMS:
            return texts  # at least as many as there are: quotes within texts count, too
    try:
        read = _items().decode(items)
    except msgspec.ValidationError:
        return MOST_ITEMS + 1
    return bisect.bisect_left(_PLACES, True, key=lambda number: getattr(read, _place(number)) is None)


def check_count(name: str, items: memoryview) -> int:
    """Return how many items a list has; RouterError 400 for too many."""
    number = count(items)
    if number > MOST_ITEMS:
        raise too_much(
            name, items, f"a list of more than {MOST_ITEMS} items", "send them in several requests"
        )
    return number


def check_objects(name: str, items: memoryview) -> None:
    """Refuse a list of too many objects.

    They are counted only where there are as many braces.
    """
    if len(items) > FEW_BYTES and bytes(items[:1]) == b"[" and cost.tally(items, ord("{")) > MOST_ITEMS:
        check_count(name, items)


def _decode(raw: bytes, max_body: int) -> Fields:
    bad = cost.check(raw, max_body)
    if bad is not None:
        raise bad_request(
            f"byte {bad}: {raw[max(0, bad - 8) : bad + 8]!r} is no UTF-8; encode the text as UTF-8",
            "invalid_json",
        )
    try:
        if len(raw) <= FEW_BYTES:
            fields = _FIELDS.decode(raw)
        else:
            _counter.left = _MOST_FIELDS
            fields = {str(name): value for name, value in _COUNTED.decode(raw).items()}
    except RecursionError:
        raise bad_request("lists and objects nest too deep; send flatter ones", "invalid_json") from None
    except msgspec.ValidationError as error:
        if len(raw) > FEW_BYTES and _counter.left < 0:
            raise _too_many_fields() from None
        raise bad_request(f"the request body must be a JSON object: {error}", "invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(
            f"the request body is not JSON that can be forwarded: {error}", "invalid_json"
        ) from None
    if len(fields) > _MOST_FIELDS:
        raise _too_many_fields()
    return fields


def scalar(name: str, raw: msgspec.Raw) -> Any:
    """Return the value of a short field; RouterError 400 for any other.

    Lists, objects and long texts are none.
    """
    view = memoryview(raw)
    if len(view) > _LONGEST_SCALAR:
        raise too_much(name, view, f"a value of {len(view)} bytes", "send a number, true, false or null")
    try:
        value = _VALUE.decode(view)
    except (msgspec.DecodeError, ValueError):
        raise bad_request(
            f"{name}: expected a number in range, got {shown(view)}", "invalid_value", name
        ) from None
    if name == "stream" and not (value is None or isinstance(value, bool)):
        raise bad_request(f"stream: expected true or false, got {value!r:.40}", "invalid_value", name)
    return value


def check_integer(name: str, value: Any, *, least: int) -> None:
    """Refuse a number that only the decode engine would refuse.

    The prefill engine never sees it, and would compute the prompt for nothing.
    """
    most = _MOST.get(name, _HIGHEST)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise bad_request(
            f"{name}: expected an integer of at least {least} and at most {most}, got {value!r:.40}",
            "invalid_value",
            name,
        )


def _structured(name: str, raw: msgspec.Raw) -> Any:
    view = memoryview(raw)
    if len(view) > _LONGEST[name]:
        raise too_much(name, view, f"a value of {len(view)} bytes", f"send at most {_LONGEST[name]}")
    if name in ("tools", "functions"):
        check_objects(name, view)
        begin = bytes(view[:256]).translate(None, b" \t\r\n")[:2]
        return begin not in (b"[]", b"{}", b'""', b"nu", b"fa", b"0")
    if bytes(view[:1]) == b"{":
        try:
            value = _FIELDS.decode(view)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise bad_request(f"{name}: {error}, got {shown(view)}", "invalid_json", name) from None
        if len(value) > _MOST_FIELDS:
            raise too_much(name, view, f"an object of {len(value)} keys", f"send at most {_MOST_FIELDS}")
        return value
    return None


def _check_number(name: str, raw: msgspec.Raw) -> None:
    view = memoryview(raw)
    if view[0] in _NUMBER and (len(view) > _LONGEST_SCALAR or not math.isfinite(float(view))):
        raise bad_request(
            f"{name:.40}: expected a number in range, got {shown(view)}", "invalid_value", name[:40]
        )


def too_much(name: str, view: memoryview, what: str, remedy: str) -> RouterError:
    """Return the 400 for a value that is beyond a limit."""
    return bad_request(f"{name}: {what}, {shown(view)}, is too much; {remedy}", "invalid_value", name)


def _too_many_fields() -> RouterError:
    return bad_request(f"the body has more than {_MOST_FIELDS} fields; send fewer", "invalid_json")


def shown(raw: msgspec.Raw | memoryview) -> str:
    """Return the beginning of a value, for a message."""
    view = memoryview(raw)
    text = str(view[:40], "utf-8", "replace")
    return text if len(view) <= 40 else f"{text}..."
