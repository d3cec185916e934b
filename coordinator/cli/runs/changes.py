"""The commands cancel, revive and discard: change the runs that are named by id, or all runs that match filters.

The number of runs is not limited. The commands walk through the ids and change the runs in batches that share round trips.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from coordinator.cli.framework.context import CommandContext
from coordinator.cli.framework.exits import DONE, REFUSED, print_error
from coordinator.cli.framework.filters import Filters, KindFilter, QueueFilter, SinceFilter, StatusFilter
from coordinator.cli.framework.inputs import parse_run_id
from coordinator.client.client import Client
from coordinator.client.handles import CANCEL_GRACE
from coordinator.client.operations import lists as list_operations
from coordinator.client.operations import runs as run_operations
from coordinator.client.operations.open_namespace import OpenNamespace
from coordinator.clock import SystemClock
from coordinator.errors import BadOption, CoordinatorError, Unconfirmed, Unreachable
from coordinator.model.run import ENDED, RunView, Status
from coordinator.store.plans.merge import Plan
from coordinator.views.formatting import format_count
from coordinator.views.run_display import runs_table

RUNS_PER_BATCH = 500  # runs that are changed, or read, together
MAX_ROWS = 100  # rows that a dry run prints; with --json it prints all
_clock = SystemClock()

RunIds = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of runs.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Change all runs that match the filters.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs that would be changed.")]


@dataclass(frozen=True, slots=True)
class Change:
    """The change that a command makes to each run.

    Attributes:
        plan: Returns the plan that changes the run with this id.
        describe: Returns the run's new status and a text for people, from the run's id and the plan's result.
        tree: True if the plan also changes the run's children, their children, and so on.
    """

    plan: Callable[[OpenNamespace, str], Plan[Any]]
    describe: Callable[[str, Any], tuple[Status, str]]
    tree: bool = False


# ---- the commands ------------------------------------------------------------------------------------------------------


def cancel(
    tree: Annotated[
        bool, typer.Option("--tree", help="Also cancel the children of the runs, and all runs below them.")
    ],
) -> Change:
    """Cancel the runs with these ids, or with --yes all runs that match the filters."""

    def describe(id: str, result: Status | dict[str, Status]) -> tuple[Status, str]:
        descendants = dict(result) if isinstance(result, dict) else {id: result}
        status = descendants.pop(id)
        if status is Status.RUNNING:
            text = "cancel requested; its worker stops it"
        else:
            text = "cancelled" if status is Status.CANCELLED else f"already ended as {status}"
        return status, text + _describe_descendants(descendants.values())

    if tree:
        return Change(
            lambda namespace, id: run_operations.cancel_tree(namespace, id, CANCEL_GRACE), describe, tree=True
        )
    return Change(lambda namespace, id: run_operations.cancel(namespace, id, CANCEL_GRACE), describe)


def revive(
    from_start: Annotated[bool, typer.Option("--from-start", help="Start again without the saved checkpoint.")],
    forget_effects: Annotated[
        bool, typer.Option("--forget-effects", help="Forget all effects: their functions are called again.")
    ],
    forget_effect: Annotated[
        list[str] | None,
        typer.Option("--forget-effect", metavar="NAME", help="Forget the effect of this name.", show_default=False),
    ] = None,
) -> Change:
    """Requeue failed, dead or cancelled runs with these ids, or with --yes all failed and dead runs that match the filters."""
    forget = forget_effects or forget_effect or False
    text = "requeued" + (" from the start" if from_start else "") + (", with effects forgotten" if forget else "")
    return Change(
        lambda namespace, id: run_operations.revive(namespace, id, from_start, forget),
        lambda id, _: (Status.QUEUED, text),
    )


def discard() -> Change:
    """Delete ended runs before their retention is over: the runs with these ids, or with --yes all that match the filters."""
    return Change(run_operations.discard, lambda id, status: (status, f"discarded; it had ended as {status}"))


# the statuses to which a command applies if --status is not given
_DEFAULT_STATUSES: dict[Callable[..., Change], Sequence[Status]] = {
    cancel: (Status.QUEUED, Status.DELAYED, Status.WAITING, Status.RUNNING),
    revive: (Status.FAILED, Status.DEAD),
    discard: tuple(sorted(ENDED)),
}

# the statuses that --status may have
_ALLOWED_STATUSES: dict[str, Sequence[Status]] = {
    cancel.__name__: _DEFAULT_STATUSES[cancel],
    revive.__name__: (Status.FAILED, Status.DEAD, Status.CANCELLED),
    discard.__name__: _DEFAULT_STATUSES[discard],
}


def _as_command(make_change: Callable[..., Change], statuses: Sequence[Status]) -> Callable[..., int]:
    """Return the function that typer calls for the command cancel, revive or discard.

    Its signature has the command's own options and the options that select runs. The signature is built here, because typer has
    no way to share a group of options.

    Args:
        make_change: Returns the change for the values of the command's own options.
        statuses: The statuses of the runs that the command changes if the user does not give --status.
    """

    def run(
        context: CommandContext, run_ids: RunIds = None, status: StatusFilter = None, kind: KindFilter = None,
        queue: QueueFilter = None, since: SinceFilter = None, yes: Yes = False, dry_run: DryRun = False, **options: Any,
    ) -> int:  # fmt: skip
        filters = Filters(status, kind, queue, since)
        changing = ChangeCommand(context, make_change.__name__, statuses, make_change(**options))
        return changing.run(run_ids or (), filters, yes=yes, dry_run=dry_run)

    shared = inspect.signature(run, eval_str=True)
    first, *rest = [p for p in shared.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    flags = [
        parameter.replace(
            default=False if parameter.default is inspect.Parameter.empty else parameter.default,
            kind=inspect.Parameter.KEYWORD_ONLY,
        )
        for parameter in inspect.signature(make_change, eval_str=True).parameters.values()
    ]
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in rest]
    run.__signature__ = shared.replace(parameters=[first, *keyword[:1], *flags, *keyword[1:]])  # type: ignore[attr-defined]  # functions have no such slot
    run.__name__, run.__doc__ = make_change.__name__, make_change.__doc__
    return run


cancel_runs, revive_runs, discard_runs = (_as_command(make, statuses) for make, statuses in _DEFAULT_STATUSES.items())


# ---- shared by the three commands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeCommand:
    """One execution of the command cancel, revive or discard."""

    context: CommandContext
    verb: str
    statuses: Sequence[Status]
    change: Change

    def run(self, ids: Sequence[str], filters: Filters, *, yes: bool, dry_run: bool) -> int:
        """Change the runs, or only list them, and return the exit code.

        Args:
            ids: The runs that the user named; empty if filters select the runs.
            filters: The filters of the user.
            yes: Change all runs that match the filters.
            dry_run: List the runs instead of changing them.

        Raises:
            BadOption: The options contradict each other, or filters were given without --yes and --dry-run.
        """
        self._check(ids, filters)
        with self.context.connect() as client:
            if ids:
                named = [parse_run_id(id) for id in ids]
                return self._list(client, named, named=True) if dry_run else self._apply(client, iter([named]))
            if dry_run or not yes:
                return self._preview(client, filters, dry_run=dry_run)
            return self._apply(client, self._rounds(client, filters))

    def _check(self, ids: Sequence[str], filters: Filters) -> None:
        if ids and filters.given:
            raise BadOption("give run ids or filters, not both")
        if not ids and not filters.given:
            raise BadOption(f"{self.verb} needs run ids, or a filter: --kind, --queue, --status or --since")
        if filters.status and filters.status not in _ALLOWED_STATUSES[self.verb]:
            *others, last = _ALLOWED_STATUSES[self.verb]
            raise BadOption(
                f"can't {self.verb} runs that are {filters.status}: --status must be {', '.join(others)} or {last}"
            )

    def _preview(self, client: Client, filters: Filters, *, dry_run: bool) -> int:
        ids = [id for status in self._selected(filters) for id in self._ids(client, filters, status)]
        if not dry_run:
            match, them = ("run matches", "it") if len(ids) == 1 else ("runs match", "them")
            raise BadOption(f"{len(ids):,} {match}: use --yes to {self.verb} {them}, or --dry-run to list {them}")
        return self._list(client, ids)

    def _list(self, client: Client, ids: Sequence[str], *, named: bool = False) -> int:
        """Print the runs that the command would change, and return the exit code.

        With `named`, the user named the ids, and an id without a run is an error. Otherwise filters found the ids, and a run may
        have been deleted since, which is not an error.
        """
        if self.change.tree:
            below = [id for id in client._do(run_operations.list_below, ids) if id not in set(ids)]
            ids, named_ids = [*ids, *below], set(ids) if named else set()
        else:
            named_ids = set(ids) if named else set()
        shown = ids if self.context.as_json else ids[:MAX_ROWS]
        found = [outcome for part in _batches(shown) for outcome in _views(client, part)]
        views = [view for view in found if isinstance(view, RunView)]
        missing = [
            error for id, error in zip(shown, found, strict=True) if not isinstance(error, RunView) and id in named_ids
        ]
        for error in missing:
            print_error(error)
        self.context.answer({"runs": views}, runs_table(views, _clock.now()) if views else Text("no runs match"))
        if len(shown) < len(ids):
            more = f"and {len(ids) - len(shown):,} more, {format_count(len(ids), 'run')} in total; --json lists all of them"
            self.context.console.print(Text(more, "dim"))
        return REFUSED if missing else DONE

    def _selected(self, filters: Filters) -> Sequence[Status]:
        return [filters.status] if filters.status else self.statuses

    def _ids(self, client: Client, filters: Filters, status: Status) -> list[str]:
        return client._do(list_operations.list_ids, filters.walk(status))

    def _rounds(self, client: Client, filters: Filters) -> Iterator[list[str]]:
        """Yield the ids of the runs that match the filters, and read them again, until a read finds no new ids.

        Runs that the command has changed do not match any more, or are skipped because their ids were yielded before.
        """
        seen: set[str] = set()
        for status in self._selected(filters):
            while fresh := [id for id in self._ids(client, filters, status) if id not in seen]:
                seen.update(fresh)
                yield fresh

    def _apply(self, client: Client, rounds: Iterator[list[str]]) -> int:
        """Change the runs whose ids `rounds` yields, print the outcomes, and return the exit code.

        If the change of one run is refused, the others are still changed.

        Raises:
            Unreachable: The server can't be reached. The runs of later batches were not changed.
            Unconfirmed: The server did not answer. The runs of later batches were not changed.
        """
        rows: list[dict[str, str]] = []
        outage: CoordinatorError | None = None
        for part in (part for ids in rounds for part in _batches(ids)):
            outcomes = client._do(run_operations.for_each, part, self.change.plan)
            lines: list[str] = []
            for id, outcome in zip(part, outcomes, strict=True):
                if isinstance(outcome, (Unreachable, Unconfirmed)):
                    outage = outage or outcome
                elif isinstance(outcome, CoordinatorError):
                    rows.append({"id": id, "error": str(outcome)})
                    print_error(outcome)
                else:
                    status, text = self.change.describe(id, outcome)
                    rows.append({"id": id, "status": status})
                    lines.append(f"{id}  {text}")
            if lines and not self.context.as_json:
                self.context.console.out("\n".join(lines))
            if outage is not None:
                break
        if self.context.as_json and (rows or outage is None):
            self.context.answer({"runs": rows})
        elif not rows and outage is None:
            self.context.console.print(Text("no runs match"))
        if outage is not None:
            raise outage
        return REFUSED if any("error" in row for row in rows) else DONE


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + RUNS_PER_BATCH] for start in range(0, len(ids), RUNS_PER_BATCH))


def _views(client: Client, ids: Sequence[str]) -> list[RunView | CoordinatorError]:
    """Return the view of each run, or the error that says why the run can't be shown.

    Raises:
        Unreachable: The server can't be reached.
        Unconfirmed: The server did not answer.
    """
    found: list[RunView | CoordinatorError] = client._do(run_operations.for_each, ids, run_operations.view)
    for outcome in found:
        if isinstance(outcome, (Unreachable, Unconfirmed)):
            raise outcome
    return found


def _describe_descendants(statuses: Iterable[Status]) -> str:
    """Return a text with the new statuses of the runs below a run that was cancelled with its tree; empty if there are none."""
    of = Counter(statuses)
    parts = {"cancelled": of[Status.CANCELLED], "asked to stop": of[Status.RUNNING]}
    parts["already ended"] = of.total() - sum(parts.values())
    counts = ", ".join(f"{number:,} {what}" for what, number in parts.items() if number)
    return f"; runs below it: {counts}" if counts else ""
