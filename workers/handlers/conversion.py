"""Convert inputs and results that are not plain data, by the annotations of a handler.

The server stores plain data only. A handler may still take and return dataclasses, pydantic models, UUID, Decimal, date, Enum and
the like: the producer's process converts the inputs to plain data, and the worker builds the annotated objects again. Pydantic does
both. A handler whose annotations are all plain is not affected, and does not need pydantic.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from coordinator.errors import NotPlain, Refused, Unreadable

_RICH = (Enum, UUID, Decimal, date, time, timedelta, PurePath, set, frozenset)
WITHOUT_PYDANTIC = (
    "pydantic 2.11 or newer converts it: install run-coordinator[pydantic], or annotate and pass plain data, "
    "for example str(value) or dataclasses.asdict(value)"
)


class Conversion:
    """The conversion of the values of one annotation to plain data and back.

    Args:
        annotation: The annotation, evaluated.
        place: The name of the value in error messages, as in "input 'order' of kind 'ship'".
    """

    def __init__(self, annotation: Any, place: str) -> None:
        self._annotation, self._place = annotation, place
        self._shown = inspect.formatannotation(annotation)

    def to_plain(self, value: Any) -> Any:
        """Return the value as plain data.

        Raises:
            Refused: If the value does not fit the annotation.
            NotPlain: If pydantic is missing or too old, or can't convert the value.
        """
        return self._dump(self._build(value, Refused))

    def from_plain(self, value: Any) -> Any:
        """Return the annotated object for plain data that `to_plain` has made.

        Raises:
            Unreadable: If the data does not fit the annotation.
            NotPlain: If pydantic is missing or too old.
        """
        return self._build(value, Unreadable)

    def _build(self, value: Any, error: type[Exception]) -> Any:
        adapter = self._adapter
        try:
            return adapter.validate_python(value, by_alias=True, by_name=True)
        except ValueError as wrong:
            raise error(f"{self._place} does not fit {self._shown}: {_flat(wrong)}") from wrong

    def _dump(self, value: Any) -> Any:
        try:
            return self._adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings="error")
        except ValueError as wrong:
            raise NotPlain(f"{self._place} can't be stored: {_flat(wrong)}") from wrong

    @functools.cached_property
    def _adapter(self) -> Any:
        """The pydantic converter of the annotation. It is built at its first use, because importing pydantic takes a while.

        Raises:
            NotPlain: If pydantic is missing or too old, or cannot convert the annotation.
        """
        try:
            import pydantic
        except ImportError:
            raise NotPlain(f"{self._place} is annotated {self._shown}: {WITHOUT_PYDANTIC}") from None
        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < (2, 11):
            raise NotPlain(
                f"{self._place} is annotated {self._shown}, and pydantic is {pydantic.VERSION}: {WITHOUT_PYDANTIC}"
            )
        try:
            return pydantic.TypeAdapter(self._annotation)
        except (pydantic.errors.PydanticUserError, TypeError, NameError) as wrong:
            raise NotPlain(
                f"{self._place} is annotated {self._shown}, which can't be converted: {_flat(wrong)}"
            ) from wrong


def to_plain(value: Any, place: str) -> Any:
    """Convert a value to plain data according to its type, and return it. Return a value that needs no conversion unchanged.

    Args:
        value: The value.
        place: The name of the value in error messages.

    Raises:
        NotPlain: If pydantic is missing or too old, or can't convert the value.
    """
    return Conversion(type(value), place).to_plain(value) if _is_rich(type(value)) else value


def conversions(function: Callable[..., Any], kind: str) -> dict[str, Conversion]:
    """Return the conversions of a function: one for each parameter whose annotation is not plain data, by name.

    If the annotation of the result is not plain, its conversion has the name "return".

    An annotation that can't be evaluated at run time, for example of a name that is only imported for type checkers, counts as
    plain.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    found = {}
    for name, annotation in getattr(inner, "__annotations__", {}).items():
        hint = _evaluated(annotation, getattr(inner, "__globals__", {}))
        if _is_rich(hint):
            place = f"the result of kind {kind!r}" if name == "return" else f"input {name!r} of kind {kind!r}"
            found[name] = Conversion(hint, place)
    return found


def _evaluated(annotation: object, names: Mapping[str, Any]) -> Any:
    holder = types.FunctionType((lambda: None).__code__, {})  # get_type_hints evaluates the annotations of functions
    holder.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(holder, dict(names), include_extras=True)["it"]
    except Exception:  # noqa: BLE001  # evaluating an arbitrary expression may raise anything; such a name is for type checkers
        return Any


def _is_rich(hint: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Return True if the annotation has a part that only pydantic can convert to plain data."""
    if any(hint is one for one in seen):
        return False
    seen = (*seen, hint)
    parts: list[Any] = [*typing.get_args(hint)]
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return any(isinstance(one, Enum) for one in parts)
    if origin is typing.Annotated:
        return _is_rich(parts[0], seen)
    if not isinstance(hint, type):  # a NewType, or a `type` statement
        parts += [getattr(hint, of) for of in ("__supertype__", "__value__") if hasattr(hint, of)]
    if typing.is_typeddict(hint):
        parts += [_evaluated(one, vars(inspect.getmodule(hint) or object)) for one in hint.__annotations__.values()]
    of = origin if isinstance(origin, type) else hint
    if isinstance(of, type) and of not in (datetime, tuple):
        if issubclass(of, _RICH) and not issubclass(of, datetime):
            return True
        if dataclasses.is_dataclass(of) or hasattr(of, "__pydantic_core_schema__") or hasattr(of, "_fields"):
            return True
    return any(_is_rich(part, seen) for part in parts)


def _flat(error: Exception) -> str:
    """Return the message of a pydantic error on one line: at most 5 of the errors that it lists, and 500 characters."""
    if hasattr(error, "errors"):
        each = error.errors(include_url=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}" for one in each[:5])[:500]
    return " ".join(str(error).split())[:500]
