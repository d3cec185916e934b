"""cancel, revive, discard: for the runs that are named, or for all that filters find, after a look at them.

However many they are: ids are walked through, and what is done to them shares its trips. What a look prints is bounded.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from coordinator.cli.filters import Filters, Kind, Queue, Since, StatusIs
from coordinator.cli.options import DONE, REFUSED, Here, command, complain
from coordinator.client.client import Client
from coordinator.client.handles import CANCEL_GRACE
from coordinator.client.operations import lists as list_operations
from coordinator.client.operations import runs as run_operations
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.clock import SystemClock
from coordinator.errors import BadOption, CoordinatorError, Unconfirmed, Unreachable
from coordinator.model.run import ENDED, RunView, Status
from coordinator.store.plans.together import Plan
from coordinator.views.formatting import format_count
from coordinator.views.run_display import runs_table

RUNS_PER_BATCH = 500  # runs that are changed, or read, together
SHOWN = 100  # rows of a dry run; as JSON it has them all
_clock = SystemClock()

RunIds = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of runs.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do it for all that the filters find.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show which runs are meant.")]


@dataclass(frozen=True, slots=True)
class Deed:
    """One way to change a run: the plan for one, and what came of it as a status and in words."""

    plan: Callable[[OpenNamespace, str], Plan[Any]]
    came_of: Callable[[str, Any], tuple[Status, str]]


# ---- the commands ------------------------------------------------------------------------------------------------------


def cancel(tree: Annotated[bool, typer.Option("--tree", help="And every run below them, however deep.")]) -> Deed:
    """Cancel runs: those named, or with --yes all that the filters find."""

    def came_of(id: str, became: Status | dict[str, Status]) -> tuple[Status, str]:
        below = dict(became) if isinstance(became, dict) else {id: became}
        now = below.pop(id)
        if now is Status.RUNNING:
            said = "running; its worker is asked to stop it"
        else:
            said = "cancelled" if now is Status.CANCELLED else f"had ended before as {now}"
        return now, said + _describe_descendants(below.values())

    if tree:
        return Deed(lambda namespace, id: run_operations.cancel_tree(namespace, id, CANCEL_GRACE), came_of)
    return Deed(lambda namespace, id: run_operations.cancel(namespace, id, CANCEL_GRACE), came_of)


def revive(from_start: Annotated[bool, typer.Option("--from-start", help="Without what was saved of it.")]) -> Deed:
    """Bring back failed, dead or cancelled runs: those named, or with --yes all that the filters find."""
    said = "queued again" + (" from the start" if from_start else "")
    return Deed(
        lambda namespace, id: run_operations.revive(namespace, id, from_start), lambda id, _: (Status.QUEUED, said)
    )


def discard() -> Deed:
    """Remove ended runs before their retention is over: those named, or with --yes all that the filters find."""
    return Deed(
        run_operations.discard,
        lambda id, had: (had, f"discarded; it had ended as {had}"),
    )


# the command -> what it applies to where no status is given
_APPLIES_TO: dict[Callable[..., Deed], Sequence[Status]] = {
    cancel: (Status.QUEUED, Status.DELAYED, Status.WAITING, Status.RUNNING),
    revive: (Status.FAILED, Status.DEAD),
    discard: tuple(sorted(ENDED)),
}

# the command -> which statuses can be asked for
_MAY_BE: dict[str, Sequence[Status]] = {
    cancel.__name__: _APPLIES_TO[cancel],
    revive.__name__: (Status.FAILED, Status.DEAD, Status.CANCELLED),
    discard.__name__: _APPLIES_TO[discard],
}


def add_to(app: typer.Typer) -> None:
    """The three commands. Each has its own options, and those that say which runs are meant."""
    for deed, statuses in _APPLIES_TO.items():
        command(app, name=deed.__name__)(_signed(deed, statuses))


def _signed(deed: Callable[..., Deed], statuses: Sequence[Status]) -> Callable[..., int]:
    """The function that typer calls: its signature is put together here, since typer knows no groups of options."""

    def run(
        here: Here, run_ids: RunIds = None, status: StatusIs = None, kind: Kind = None, queue: Queue = None,
        since: Since = None, yes: Yes = False, dry_run: DryRun = False, **options: bool,
    ) -> int:  # fmt: skip
        filters = Filters(status, kind, queue, since)
        changing = Changing(here, deed.__name__, statuses, deed(**options))
        return changing.run(run_ids or (), filters, yes=yes, dry_run=dry_run)

    shared = inspect.signature(run, eval_str=True)
    first, *rest = [p for p in shared.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    flags = [
        parameter.replace(default=False, kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(deed, eval_str=True).parameters.values()
    ]
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in rest]
    run.__signature__ = shared.replace(parameters=[first, *keyword[:1], *flags, *keyword[1:]])  # type: ignore[attr-defined]  # functions have no such slot
    run.__name__, run.__doc__ = deed.__name__, deed.__doc__
    return run


# ---- how they go on ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Changing:
    """One such command, as it was called."""

    here: Here
    verb: str
    statuses: Sequence[Status]
    deed: Deed

    def run(self, ids: Sequence[str], filters: Filters, *, yes: bool, dry_run: bool) -> int:
        if ids and filters.given:
            raise BadOption("name runs or give filters, not both")
        if not ids and not filters.given:
            raise BadOption(f"say which runs to {self.verb}: their ids, or --kind, --queue, --status, --since")
        if filters.status and filters.status not in _MAY_BE[self.verb]:
            *others, last = _MAY_BE[self.verb]
            raise BadOption(f"{self.verb} is for runs that are {', '.join(others)} or {last}, not {filters.status}")
        settings = self.here.settings
        with Client(settings.url, settings.namespace, settings.timeout) as client:
            if ids:
                named = [client.handle(id).id for id in ids]
                return self._show(client, named, named=True) if dry_run else self._carry_out(client, iter([named]))
            if dry_run or not yes:
                return self._look(client, filters, dry_run=dry_run)
            return self._carry_out(client, self._rounds(client, filters))

    def _look(self, client: Client, filters: Filters, *, dry_run: bool) -> int:
        ids = [id for status in self._meant(filters) for id in self._ids(client, filters, status)]
        if not dry_run:
            match, them = ("run matches", "it") if len(ids) == 1 else ("runs match", "them")
            raise BadOption(f"{len(ids):,} {match}: --yes to {self.verb} {them}, --dry-run to see {them}")
        return self._show(client, ids)

    def _show(self, client: Client, ids: Sequence[str], *, named: bool = False) -> int:
        """What a dry run prints. A run that was named and is not there is said; one that a walk found may have gone since."""
        shown = ids if self.here.as_json else ids[:SHOWN]
        found = [outcome for part in _parts(shown) for outcome in _views(client, part)]
        views = [view for view in found if isinstance(view, RunView)]
        missing = [error for error in found if not isinstance(error, RunView)] if named else []
        for error in missing:
            complain(error)
        self.here.answer(views, runs_table(views, _clock.now()) if views else Text("no runs match"))
        if len(shown) < len(ids):
            more = f"and {format_count(len(ids) - len(shown), 'run')} more, {len(ids):,} in all; --json has them all"
            self.here.console.print(Text(more, "dim"))
        return REFUSED if missing else DONE

    def _meant(self, filters: Filters) -> Sequence[Status]:
        return [filters.status] if filters.status else self.statuses

    def _ids(self, client: Client, filters: Filters, status: Status) -> list[str]:
        return client._do(list_operations.list_ids, filters.walk(status))

    def _rounds(self, client: Client, filters: Filters) -> Iterator[list[str]]:
        """Walk after walk, until one finds nothing new: what was changed is no longer found, or was seen."""
        seen: set[str] = set()
        for status in self._meant(filters):
            while fresh := [id for id in self._ids(client, filters, status) if id not in seen]:
                seen.update(fresh)
                yield fresh

    def _carry_out(self, client: Client, rounds: Iterator[list[str]]) -> int:
        """A run that is refused does not keep the others from being changed; a server that is away does."""
        rows: list[dict[str, str]] = []
        away: CoordinatorError | None = None
        for part in (part for ids in rounds for part in _parts(ids)):
            outcomes = client._do(run_operations.for_each, part, self.deed.plan)
            lines: list[str] = []
            for id, outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, (Unreachable, Unconfirmed)):
                    away = away or outcome
                elif isinstance(outcome, CoordinatorError):
                    rows.append({"id": id, "error": str(outcome)})
                    complain(outcome)
                else:
                    status, said = self.deed.came_of(id, outcome)
                    rows.append({"id": id, "status": status})
                    lines.append(f"{id}  {said}")
            if lines and not self.here.as_json:
                self.here.console.out("\n".join(lines))
            if away is not None:
                break
        if self.here.as_json and (rows or away is None):
            self.here.answer({"runs": rows})
        elif not rows and away is None:
            self.here.console.print(Text("no runs match"))
        if away is not None:
            raise away
        return REFUSED if any("error" in row for row in rows) else DONE


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + RUNS_PER_BATCH] for start in range(0, len(ids), RUNS_PER_BATCH))


def _views(client: Client, ids: Sequence[str]) -> list[RunView | CoordinatorError]:
    """Each run, or why it can't be shown; a server that is away is raised."""
    found: list[RunView | CoordinatorError] = client._do(run_operations.for_each, ids, run_operations.view)
    for outcome in found:
        if isinstance(outcome, (Unreachable, Unconfirmed)):
            raise outcome
    return found


def _describe_descendants(statuses: Iterable[Status]) -> str:
    """Return what happened to the runs below a run that was cancelled with its tree; empty if there are none."""
    of = Counter(statuses)
    parts = {"cancelled": of[Status.CANCELLED], "asked to stop": of[Status.RUNNING]}
    parts["already ended"] = of.total() - sum(parts.values())
    counts = ", ".join(f"{number:,} {what}" for what, number in parts.items() if number)
    return f"; runs below it: {counts}" if counts else ""
