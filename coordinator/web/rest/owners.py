"""Restrict a caller to the runs of its owner.

The owner is a value in a run's meta. The API writes it when it enqueues a run, and reads it before each answer about a run. For the
caller, a run of another owner does not exist.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from coordinator.client.operations.open_namespace import run_not_found
from coordinator.errors import BadOption, Refused
from coordinator.model.run import RunView
from coordinator.views.json_data import to_json_data
from coordinator.web.problems import Problem
from coordinator.web.rest.schemas import PUBLIC_FIELDS

# A function of the host application that returns the owner of a request; None for a caller that it does not know.
FindOwner = Callable[[Request], str | Awaitable[str | None] | None]
# The kinds that callers may enqueue; in a mapping with options of `enqueue` that the application sets for each kind.
Kinds = Collection[str] | Mapping[str, Mapping[str, Any]]

OWN_OPTIONS = frozenset({"delay", "at", "expires", "meta"})  # options that a caller with an owner may set itself


async def find_owner(find: FindOwner | None, request: Request) -> str | None:
    """Return the owner that the function `find` gives to a request; None if there is no function, so that callers see all runs.

    Raises:
        Problem: The application does not know the caller (401).
    """
    if find is None:
        return None
    found = find(request)
    owner = await found if inspect.isawaitable(found) else found
    if not isinstance(owner, str) or not owner:
        raise Problem(401, "Unauthorized", "The application does not know the caller: log in first.")
    return owner


@dataclass(frozen=True, slots=True)
class Ownership:
    """The rules for the runs that the caller of one request may see and enqueue.

    Attributes:
        owner: The owner of the request; None if the caller may see all runs.
        field: The name of the owner in the meta of a run.
        kinds: The kinds that the caller may enqueue; None for all.
    """

    owner: str | None
    field: str = "owner"
    kinds: Kinds | None = None

    def check(self, view: RunView) -> RunView:
        """Return the view if the caller may see the run.

        Raises:
            NotFound: The run has another owner. The message is the same as for a run that does not exist.
        """
        if not self.owns(view):
            raise run_not_found(view.id)
        return view

    def owns(self, view: RunView) -> bool:
        """Return True if the caller may see the run."""
        return self.owner is None or view.meta.get(self.field) == self.owner

    def show(self, view: RunView) -> dict[str, Any]:
        """Return the fields of a run that the caller may see.

        A caller with an owner does not see the workers, the version of their code, tracebacks and the story of the run.
        """
        fields: dict[str, Any] = to_json_data(view)
        if self.owner is None:
            return fields
        shown = {name: fields[name] for name in PUBLIC_FIELDS}
        if shown["error"]:
            shown["error"] = {name: shown["error"][name] for name in ("type", "message")}
        if shown["key"]:
            shown["key"] = shown["key"].removeprefix(self._key_prefix())
        return shown

    def options(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with which a run is enqueued for the caller: the given ones, and those that the application sets.

        Args:
            kind: The kind of the run.
            given: The options of the request.

        Raises:
            BadOption: The caller may not enqueue this kind, or set an option that only the application may set.
        """
        if self.kinds is not None and kind not in self.kinds:
            raise BadOption(f"kind {kind!r:.120} can't be enqueued here")
        fixed = self.kinds.get(kind, {}) if isinstance(self.kinds, Mapping) else {}
        meta = {**given.get("meta", {}), **fixed.get("meta", {})}
        if self.owner is not None:
            if refused := sorted(given.keys() - OWN_OPTIONS):
                raise BadOption(f"option {refused[0]!r} can't be set here: use {', '.join(sorted(OWN_OPTIONS))}")
            if self.field in given.get("meta", {}):
                raise BadOption(f"meta.{self.field} can't be set here: it names the owner of the run")
            meta[self.field] = self.owner
        return {**given, **fixed, "meta": meta}

    def key(self, key: str | None) -> str | None:
        """Return the stored form of an idempotency key; None for None. It contains the owner, so that owners do not share keys."""
        return None if key is None else self._key_prefix() + key

    def _key_prefix(self) -> str:
        return "" if self.owner is None else quote(self.owner, safe="") + "/"


def check_kinds(kinds: Kinds | None) -> Kinds | None:
    """Return the kinds as they are, if they are not a single text.

    Raises:
        Refused: A single text was given, whose characters would count as kinds.
    """
    if isinstance(kinds, str):
        raise Refused("kinds is a text: give a list of kinds, or a dict of kinds and options")
    return kinds
