"""The data that the page reads besides the board: lists of runs, one run, schedules, and the doctor's findings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from coordinator.client.async_client import AsyncClient
from coordinator.client.operations.open_namespace import OpenNamespace, reading
from coordinator.clock import SystemClock
from coordinator.doctor.examiner import examine
from coordinator.doctor.report import DoctorReport
from coordinator.errors import CoordinatorError, Unconfirmed, Unreachable
from coordinator.feed.looks import look_at
from coordinator.model.run import RunView, Status
from coordinator.model.story import describe_end, describe_saved, duration, lost_work
from coordinator.store.plans.merge import Plan
from coordinator.views.formatting import format_value
from coordinator.views.status_reason import describe_wait
from coordinator.web.page.run_details import MOST_MESSAGES, read_checkpoint, read_children, read_messages
from coordinator.web.page.run_filter import read_filter
from coordinator.web.page.run_pages import list_page
from coordinator.web.page.shorten import shorten

DOCTOR_SECONDS = 60.0  # seconds after which a viewer who asks for the doctor's report gets a new one
CHEAP_SECONDS = 600.0  # seconds after which the page makes a new report on its own
SMALL_NAMESPACE = 20_000  # the largest number of runs of a namespace for which the page makes a report on its own
MOST_EFFECTS = 200
SHORT_TEXT, LONG_TEXT = 2000, 200_000  # characters of a text of a message

_clock = SystemClock()
log = logging.getLogger(__name__)


class PageQueries:
    """The queries of the page: each method reads from the server, and returns data for JSON."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._examining = asyncio.Lock()
        self._report: tuple[float, DoctorReport] | None = None
        self._refused = False  # True if the server's user may not examine keys

    def facts(self) -> dict[str, str]:
        """Return the names of the namespace and of the server, without a password, and the version of this package."""
        settings = self._client._settings
        return {
            "namespace": settings.namespace,
            "server": str(settings.address),
            "version": version("run-coordinator"),
        }

    async def runs(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of runs that match the query of a request. Without a status, it has the newest runs and no next page."""
        page = await self._client._do(list_page, read_filter(query), query.get("cursor", ""))
        return {"runs": [run_row(view) for view in page.runs], "cursor": page.cursor, "scanned": page.scanned}

    async def run(self, id: str) -> dict[str, Any]:
        """Return one run for its details: the run, its story, its checkpoint and its children, without its transcript."""
        view = await self._client.handle(id).view()
        checkpoint, children = await asyncio.gather(
            self._client._do(read_checkpoint, id), self._client._do(read_children, id)
        )
        data: dict[str, Any] = shorten(view)
        data["inputs_text"] = shorten(format_value(view.inputs), LONG_TEXT)
        data["story"] = [
            {
                **shorten(entry),
                "said": describe_end(entry)[:1000],
                "saved_said": describe_saved(entry),
                "seconds": duration(entry),
                "lost": lost_work(entry),
            }
            for entry in view.story
        ]
        data["wait_said"] = describe_wait(view.waiting) if view.waiting else ""
        data["effects"] = [
            {"name": name[:200], "state": effect_state(state, view.status)}
            for name, state in [*view.effects.items()][:MOST_EFFECTS]
        ]
        data["more_effects"] = max(0, len(view.effects) - MOST_EFFECTS)
        return {"run": data, "checkpoint": checkpoint, **children, "now": _clock.now()}

    async def messages(self, id: str, start: int, *, full: bool) -> dict[str, Any]:
        """Return a page of a run's saved transcript, from the message `start` on.

        Texts are cut after 2,000 characters. With `full`, the page has only this message, and its texts are cut after 200,000.
        """
        shown = (LONG_TEXT, 1) if full else (SHORT_TEXT, MOST_MESSAGES)
        return await self._client._do(read_messages, id, start, *shown)

    async def schedules(self) -> dict[str, Any]:
        """Return all schedules, each with the status of its last run."""
        found = await self._client.schedules()
        looks, now = await self._client._do(look_at, [one.last for one in found if one.last])
        rows = []
        for one in found:
            look = looks.get(one.last) if one.last else None
            last = {"status": str(look.status), "started": look.started, "ended": look.ended} if look else None
            late = bool(one.next and not one.paused and one.next.timestamp() < now - 5)
            rows.append({**shorten(one), "last_run": last, "late": late})
        return {"schedules": rows, "now": now}

    async def doctor(self) -> dict[str, Any]:
        """Return a report of the doctor that is at most a minute old. All viewers share the report."""
        async with self._examining:
            now = _clock.monotonic()
            if self._report is None or now - self._report[0] > DOCTOR_SECONDS:
                report = await self._client._do(_examine)
                self._report = (_clock.monotonic(), report)
            at, report = self._report
        return self._report_data(at, report)

    async def cheap_doctor(self) -> dict[str, Any]:
        """Return the last report of the doctor. In a small namespace, make a new report if the last one is ten minutes old.

        `examined` is False if there is no report: the namespace is large and no viewer has asked for one, or the server's user may
        not examine its keys.
        """
        known = self._report
        old = known is None or _clock.monotonic() - known[0] > CHEAP_SECONDS
        # Viewers that have a report do not wait for an examination that is in progress. The others share it.
        if old and not self._refused and (known is None or not self._examining.locked()):
            overview = await self._client.status()
            if sum(overview.counts.values()) <= SMALL_NAMESPACE:
                try:
                    return {"examined": True, **await self.doctor()}
                except (Unreachable, Unconfirmed):
                    raise
                except CoordinatorError as error:
                    log.info("the page shows no findings of the doctor: %s", error)
                    self._refused = True
        return {"examined": True, **self._report_data(*known)} if known else {"examined": False}

    def _report_data(self, at: float, report: DoctorReport) -> dict[str, Any]:
        data: dict[str, Any] = {"age": _clock.monotonic() - at, "healthy": report.healthy, "runs": report.runs}
        data |= {"keys": report.keys, "found": report.found}
        data["findings"] = [{"sentence": one.sentence, "remedy": one.remedy} for one in report.findings[:100]]
        return data


def _examine(namespace: OpenNamespace) -> Plan[DoctorReport]:
    space = yield from namespace.space()
    return (yield from reading(examine(space)))


def effect_state(state: str, status: Status) -> str:
    """Return the state of an effect of a run: done, begun, or unknown.

    A begun effect of a run that is not running is unknown: no process calls its function any more, and no process has stored that
    it is done.
    """
    return "unknown" if state == "begun" and status is not Status.RUNNING else state


def run_row(view: RunView) -> dict[str, Any]:
    """Return the fields of a run that a list shows, as data for JSON."""
    names = (
        "id",
        "kind",
        "queue",
        "status",
        "cancelling",
        "attempt",
        "created",
        "started",
        "ended",
        "due",
        "key",
        "group",
        "owner",
    )
    row = {name: shorten(getattr(view, name), 200) for name in names}
    note = view.note.text if view.note and view.status is Status.RUNNING else ""
    return row | {"why": (note or view.why)[:300], "meta": shorten(view.meta, 100)}
