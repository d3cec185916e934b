"""The filter of the page's lists of runs. This module does no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from coordinator.encoding.spec import SPEC_FIELDS, join_spec, read_spec
from coordinator.errors import BadOption, NotFound, Unreadable
from coordinator.model.names import name as check_name
from coordinator.model.names import parse_route
from coordinator.model.policies.groups import check_group
from coordinator.model.run import Counters, RunView, Status
from coordinator.store.replies import text

_FACTS = ("route", "group", "counters")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The filter that selects the listed runs. Empty values match every run.

    Attributes:
        status: The status, in the order of whose index runs are listed; None for the newest runs of all statuses.
        kind: The kind.
        queue: The queue.
        key: The idempotency key.
        meta: Names and texts that the meta of a run must have.
        since: Unix time; runs created before it are left out.
        until: Unix time; runs created after it are left out.
        group: The group.
    """

    status: Status | None
    kind: str = ""
    queue: str = ""
    key: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)
    since: float = 0.0
    until: float = 0.0
    group: str = ""

    @property
    def narrow(self) -> bool:
        """Return True if the indexes also contain runs that do not match, so that the fields of each run must be checked."""
        by_route = (self.kind or self.queue) and self.status is not Status.QUEUED
        return bool(by_route or self.queue or self.group or self.key or self.meta or self.since or self.until)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields of a run that `takes_fields` needs."""
        return (*_FACTS, *SPEC_FIELDS) if self.key or self.meta else _FACTS

    def takes_route(self, route: str) -> bool:
        """Return True if runs of this route may match."""
        if not (self.kind or self.queue):
            return True
        queue, kind, _ = parse_route(route)
        return self.kind in ("", kind) and self.queue in ("", queue)

    def takes_group(self, group: str) -> bool:
        """Return True if runs of this group, given as <kind>:<name>, may match."""
        kind, _, name = group.partition(":")
        return self.kind in ("", kind) and self.group in ("", name)

    def takes_fields(self, values: Sequence[bytes | None]) -> bool:
        """Return True if a run with these fields matches. A run that is gone or damaged does not match a narrow filter."""
        route, group, counters, *spec = values
        try:
            if not self.takes_route(text(route or b"")):
                return False
            if self.group and text(group or b"").partition(":")[2] != self.group:
                return False
            if (self.since or self.until) and not self._takes_time(
                Counters.parse(text(counters or b"")).created / 1000
            ):
                return False
            return not spec or self._takes_spec(join_spec(dict(zip(SPEC_FIELDS, spec, strict=True))))
        except (ValueError, TypeError, Unreadable):
            return False

    def _takes_spec(self, data: bytes | None) -> bool:
        if data is None:
            return False
        _, meta, extra = read_spec(data)
        return self.key in ("", extra.get("key")) and self._takes_meta(meta)

    def _takes_meta(self, meta: Mapping[str, Any]) -> bool:
        return all(name in meta and _as_text(meta[name]) == value for name, value in self.meta.items())

    def _takes_time(self, created: float) -> bool:
        return created >= self.since and (not self.until or created <= self.until)

    def takes(self, view: RunView) -> bool:
        """Return True if the run with this view matches the filter."""
        return (
            self.status in (None, view.status)
            and self.kind in ("", view.kind)
            and self.queue in ("", view.queue)
            and self.group in ("", view.group)
            and self.key in ("", view.key)
            and self._takes_meta(view.meta)
            and self._takes_time(view.created.timestamp())
        )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def read_filter(query: Mapping[str, str]) -> RunFilter:
    """Return the filter of a list from the query of a request.

    Raises:
        NotFound: There is no such status.
        BadOption: A filter is not valid.
    """
    try:
        status = Status(query["status"]) if query.get("status") else None
    except ValueError:
        raise NotFound(f"there is no status {query.get('status')!r}") from None
    meta = {}
    for part in filter(None, (piece.strip() for piece in query.get("meta", "").split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise BadOption("write meta as name=value, with commas between several")
        meta[name.strip()] = value.strip()
    since, until = (_moment(query.get(name, "")) for name in ("since", "until"))
    kind, queue, group = (query.get(name, "") for name in ("kind", "queue", "group"))
    for value, what in ((kind, "kind"), (queue, "queue")):
        if value:
            check_name(value, what)
    return RunFilter(status, kind, queue, query.get("key", ""), meta, since, until, group and check_group(group))


def _moment(value: str) -> float:
    if not value:
        return 0.0
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        raise BadOption(f"{value!r} is not a time: use a Unix time or ISO 8601") from None
