"""What can be kept of a memory that is damaged: one bad value loses only itself. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from eldr_operator import border, clock
from eldr_operator.drift.baselines import stored
from eldr_operator.drift.state import State
from eldr_operator.models import CentroidSet

Object = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

_MOST_SCORE = 1e9
_MOST_BASELINES = 8
_LONGEST_TEXT = 4096
_REFIT_TIMES = ("lastScheduleTime", "nextScheduleTime")
_REFIT_TEXTS = ("schedule", "lastFit")


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object; empty where it is none."""
    return value if isinstance(value, Mapping) else {}


def pointer(value: object) -> CentroidSet | None:
    """Return a pointer to a set; None where there is none, or half of one."""
    try:
        return None if value is None else CentroidSet.model_validate(value)
    except ValidationError:
        return None


def history(value: object, most: int) -> tuple[Object, ...]:
    """Return the entries that are whole, as ``status.history`` shows them; at most the last ``most``."""
    found = []
    for entry in map(mapping, value if isinstance(value, list | tuple) else ()):
        epoch, time = border.count(entry.get("epoch")), clock.read(entry.get("time"))
        texts = {key: border.name(entry.get(key)) for key in ("fit", "reason")}
        if epoch is not None and time is not None and all(texts.values()):
            found.append({"time": clock.stamp(time), "epoch": epoch} | texts)
    return tuple(found[-most:])


def refit(value: object) -> Object:
    """Return ``status.refit`` without what is none of it."""
    told = mapping(value)
    times = {key: clock.read(told.get(key)) for key in _REFIT_TIMES}
    texts = {key: _spec_text(told.get(key)) for key in _REFIT_TEXTS}
    found = {key: clock.stamp(time) for key, time in times.items() if time is not None}
    return found | {key: text for key, text in texts.items() if text}


def _spec_text(value: object) -> str:
    """Return a text as it stands, because it is compared with one of the spec; empty where it cannot be one."""
    known = isinstance(value, str) and len(value) <= _LONGEST_TEXT
    return str(value) if known and all(one.isprintable() or one.isspace() for one in str(value)) else ""


def baselines(value: object) -> Object:
    """Return what fits stored beside their sets, empty for nothing; what cannot be read is read from their reports again."""
    whole: Object = {}
    for key, one in list(mapping(value).items())[-_MOST_BASELINES:]:
        try:
            whole[key] = stored(one) if one != {} else {}
        except ValueError:
            continue
    return whole


def state(value: object) -> State:
    """Return what is known of drift; a bad field is what it is at first, a bad item of a list is left out."""
    told = mapping(value)
    # until 0.1 blocked sets were called barred
    return _record(State, {"blocked": told.get("barred"), **told})


def not_after(value: M, now: datetime) -> M:
    """Return a record whose times lie ahead of none: a clock that was ahead once must not stop anything until then."""
    update: Object = {}
    for name in type(value).model_fields:
        one = getattr(value, name)
        if isinstance(one, datetime):
            update[name] = min(one, now)
        elif isinstance(one, BaseModel):
            update[name] = not_after(one, now)
        elif isinstance(one, tuple):
            update[name] = tuple(min(item, now) if isinstance(item, datetime) else item for item in one)
    return value.model_copy(update=update)


def _record(kind: type[M], value: object) -> M:
    told = mapping(value)
    found: Object = {}
    for name, field in kind.model_fields.items():
        one = told.get(field.alias or name)
        if one is not None and (read := _field(field, one)) is not None:
            found[name] = read
    return kind.model_validate(found)


def _field(field: FieldInfo, value: object) -> Any:
    """Return what fits a field; None for what does not."""
    annotation: Any = field.annotation
    nested = [one for one in (annotation, *get_args(annotation)) if _is_record(one)]
    if nested:
        return _nested(nested[0], value)
    if isinstance(field.default, tuple):
        return _items(annotation, value)
    return _valid(annotation, value)


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _nested(kind: type[BaseModel], value: object) -> BaseModel | None:
    try:
        return _record(kind, value)
    except ValidationError:
        return None  # what it needs is missing


def _items(annotation: Any, value: object) -> tuple[Any, ...]:
    items: Iterable[object] = value if isinstance(value, list | tuple) else ()
    kind = get_args(annotation)[0]
    found = [_valid(kind, one) for one in items]
    # counts are told by their place: without one, the others are those of other groups
    if kind is int and None in found:
        return ()
    return tuple(one for one in found if one is not None)


def _valid(kind: Any, value: object) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and border.count(value) is None:
        return None
    if isinstance(value, str):
        if kind in {datetime, datetime | None}:
            return clock.read(value)
        if not border.name(value):
            return None
    try:
        found = TypeAdapter(kind).validate_python(value, strict=kind in {bool, int, float, str})
    except ValidationError:
        return None
    if isinstance(found, float) and not (math.isfinite(found) and 0 <= found <= _MOST_SCORE):
        return None
    return None if isinstance(found, datetime) else found
