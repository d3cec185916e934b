"""The inputs that a handler takes. They are read from its function once, so that checking the inputs of a run is cheap."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, get_origin

from coordinator.errors import Refused
from workers.handlers.async_run import AsyncRun
from workers.handlers.conversion import Conversion, conversions
from workers.handlers.run import Run


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs that a handler takes besides its run.

    Attributes:
        kind: The kind, for messages.
        reserved: Names that cannot be inputs, because the run's parameter has them.
        ordered: The names of inputs that may be given by position.
        known: The names of all inputs.
        required: The names of inputs without a default.
        open: True if the function has `**kwargs` and so takes inputs of any name.
        conversions: The conversions of inputs whose annotations are not plain data.
        result: The conversion of the result; None if its annotation is plain.
    """

    kind: str
    reserved: frozenset[str]
    ordered: tuple[str, ...]
    known: frozenset[str]
    required: frozenset[str]
    open: bool
    conversions: Mapping[str, Conversion]
    result: Conversion | None

    @classmethod
    def of(cls, function: Callable[..., Any], kind: str) -> Signature:
        """Return the signature of a function.

        Raises:
            Refused: If the function cannot be a handler.
        """
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            raise Refused(f"handler {kind!r} takes no run: its first parameter must be one, as in `def {kind}(run, …)`")
        first, *rest = parameters
        _check_run(function, first, kind)
        for one in rest:
            if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
                shown = f"*{one.name}" if one.kind is one.VAR_POSITIONAL else f"{one.name}, /"
                raise Refused(
                    f"handler {kind!r} takes `{shown}`: inputs are stored by name, so each input needs a name"
                )
        named = [one for one in rest if one.kind is not one.VAR_KEYWORD]
        found = conversions(function, kind)
        return cls(
            kind=kind,
            reserved=frozenset() if first.kind is Parameter.POSITIONAL_ONLY else frozenset({first.name}),
            ordered=tuple(one.name for one in named if one.kind is one.POSITIONAL_OR_KEYWORD),
            known=frozenset(one.name for one in named),
            required=frozenset(one.name for one in named if one.default is one.empty),
            open=len(named) < len(rest),
            conversions={one.name: found[one.name] for one in named if one.name in found},
            result=found.get("return"),
        )

    def by_name(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        """Return the inputs of a call by name.

        Raises:
            Refused: If there are too many positional inputs, or one input was given twice.
        """
        if len(args) > len(self.ordered):
            raise Refused(f"{self.kind} takes {len(self.ordered)} inputs by position, and {len(args)} were given")
        values = dict(zip(self.ordered, args, strict=False))
        twice = values.keys() & kwargs.keys()
        if twice:
            raise Refused(f"{self.kind} got {_listed(twice)} twice, by position and by name")
        return values | kwargs

    def fits(self, inputs: Mapping[str, Any]) -> str | None:
        """Return None if the function can be called with these inputs, else a sentence that says why not."""
        names = inputs.keys()
        if names >= self.required and (names <= self.known or (self.open and self._may_be_extra(names - self.known))):
            return None
        missing, unexpected = self.required - names, names - self.known
        wrong = [f"lacks {_listed(missing)}"] if missing else []
        if unexpected and not (self.open and self._may_be_extra(unexpected)):
            wrong.append(f"does not know {_listed(unexpected)}")
        return f"{self.kind} {' and '.join(wrong)}; it takes {_listed(self.known) if self.known else 'no inputs'}"

    def _may_be_extra(self, names: AbstractSet[str]) -> bool:
        return self.reserved.isdisjoint(names) and all(isinstance(one, str) for one in names)


def _check_run(function: Callable[..., Any], first: Parameter, kind: str) -> None:
    """Check the annotation of the run's parameter. A wrong annotation would otherwise cause an error in the middle of a run.

    Raises:
        Refused: If an async handler takes a Run, or a plain handler takes an AsyncRun.
    """
    given = _annotated(first.annotation, getattr(function, "__globals__", {}))
    is_async = inspect.iscoroutinefunction(function)
    wanted, other = (AsyncRun, Run) if is_async else (Run, AsyncRun)
    if isinstance(given, type) and issubclass(given, other):
        raise Refused(
            f"handler {kind!r} is {'async' if is_async else 'plain'}: "
            f"annotate `{first.name}: {wanted.__name__}`, not {other.__name__}"
        )


def _annotated(annotation: object, names: Mapping[str, Any]) -> object:
    """Return the class that the annotation of a run's parameter names, or None if it is unknown.

    If the annotation is a string, only the part before the first bracket is looked up, because the names inside the brackets may
    exist only for type checkers.
    """
    if not isinstance(annotation, str):
        return get_origin(annotation) or annotation
    head = annotation.strip("'\" ").partition("[")[0].strip()
    module, _, last = head.rpartition(".")
    found = getattr(names.get(module), last, None) if module else names.get(head)
    return {"Run": Run, "AsyncRun": AsyncRun}.get(last) if found is None else get_origin(found) or found


def _listed(names: AbstractSet[str]) -> str:
    return ", ".join(sorted(repr(one) for one in names))
