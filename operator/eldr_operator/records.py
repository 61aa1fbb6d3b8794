"""Typed records that are kept where others may write, and are read with as little lost as possible. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    WrapValidator,
)
from pydantic_core import ErrorDetails

from eldr_operator import clock, parsing
from eldr_operator.camel import CamelModel

R = TypeVar("R", bound="Record")
Place = tuple[int | str, ...]

_READING = "reading"
_MOST_AMOUNT = 1e9


class Record(CamelModel):
    """Base of what is kept."""

    model_config = ConfigDict(allow_inf_nan=False)

    def but(self, **changes: Any) -> Self:
        """Return it with some fields changed."""
        return self.model_copy(update=changes)

    def to_json(self) -> dict[str, Any]:
        """Return it as it is kept."""
        return self.model_dump(mode="json", by_alias=True)


def read_by(parse: Callable[[Any], Any]) -> BeforeValidator:
    """Have a field parsed where a record is read. What was reckoned here is as it is: it must end no pass.

    Parameters
    ----------
    parse : callable
        Returns what a value is, None for one that is none.
    """

    def check(value: Any, info: ValidationInfo) -> Any:
        if info.context != _READING:
            return value
        if (parsed := parse(value)) is None:
            raise ValueError("cannot be read")
        return parsed

    return BeforeValidator(check)


def _complete(value: object, check: Any) -> Any:
    try:
        return check(value)
    except ValidationError:
        raise ValueError("a part of it cannot be read") from None


Time = Annotated[datetime, read_by(clock.read)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, read_by(parsing.count)]
Amount = Annotated[float, read_by(lambda value: parsing.number(value, 0, _MOST_AMOUNT))]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[!-~]+$")]
Label = Annotated[str, read_by(parsing.name)]
"""A name; empty for what is none."""
Complete = WrapValidator(_complete)
"""Of what is of no use where a part is missing: counts that are told by their place, a pointer to a set."""


def read(kind: type[R], value: object) -> R:
    """Return a record of what can be read: what cannot is left out, with what needs it, and nothing else.

    Raises
    ------
    ValueError
        If what the record itself needs is missing.
    """
    record: Any = value if isinstance(value, Mapping) else {}
    while True:
        try:
            return kind.model_validate(record, context=_READING)
        except ValidationError as error:
            places = {_place(each) for each in error.errors(include_url=False, include_input=False)}
            if () in places:
                raise
            record = copy.deepcopy(record)
            for place in sorted(places, key=_depth, reverse=True):
                _drop(record, place)


def _place(error: ErrorDetails) -> Place:
    """Return what has to go: the bad value, or what lacks one."""
    place = error["loc"]
    return place[:-1] if error["type"] == "missing" else place


def _depth(place: Place) -> tuple[int, int]:
    """Order places so that whoever drops the last one first leaves the others where they are."""
    return len(place), place[-1] if isinstance(place[-1], int) else 0


def _drop(container: Any, place: Place) -> None:
    for key in place[:-1]:
        container = container[key]
    del container[place[-1]]


def not_after(value: R, now: datetime) -> R:
    """Return a record whose times lie ahead of none: a clock that was ahead once must not stop anything until then."""
    update: dict[str, Any] = {}
    for name in type(value).model_fields:
        one = getattr(value, name)
        if isinstance(one, datetime):
            update[name] = min(one, now)
        elif isinstance(one, Record):
            update[name] = not_after(one, now)
        elif isinstance(one, tuple):
            update[name] = tuple(min(item, now) if isinstance(item, datetime) else item for item in one)
    return value.but(**update)
