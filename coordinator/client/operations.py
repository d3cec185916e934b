"""What clients do, as plans: one meaning for Client and AsyncClient. The server's words become values or named errors here.

A namespace's facts are read by the first plan that needs them (and founded where nobody has), after a look at the server.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from coordinator.client import overview
from coordinator.client import schedules as scheduling
from coordinator.client.listing import Listing
from coordinator.client.parent import current
from coordinator.client.run_builder import (
    Draft,
    Drafting,
    batches,
    given_ids,
    kind_and_values,
    without,
)
from coordinator.client.scan import Walk
from coordinator.clock import Clock
from coordinator.encoding.spec import SPEC_FIELDS, digest_inputs, join_spec, read_spec
from coordinator.errors import (
    BadCall,
    BadName,
    BadOption,
    Changed,
    CoordinatorError,
    KeyConflict,
    NotConfigured,
    NotFound,
    TreeCancelled,
    Unconfirmed,
    Unreachable,
    Unreadable,
)
from coordinator.model.address import Address
from coordinator.model.run import Inputs, RunIds, RunView, Status, name, partition_for, partition_of
from coordinator.model.schedule import ScheduleView
from coordinator.store import scripts
from coordinator.store import server_checks as checks
from coordinator.store.keys import Keys, Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import schedules as schedule_plans
from coordinator.store.plans import trees as tree_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.together import together
from coordinator.store.plans.trees import Felled
from coordinator.store.replies import text, word
from coordinator.store.script import Request, read
from coordinator.views.ending import Ending
from coordinator.views.namespace_view import Overview, WorkerView
from coordinator.views.run_view import read_counters, run_view

log = logging.getLogger(__name__)

T = TypeVar("T")
H = TypeVar("H")
Steps = Generator[Request | list[Request], Any, T]
Grip = Callable[[str, bool], H]

LOOK_AT_ONCE = 500


class Operations:
    """The plans of one client. Shared by its threads: nothing here changes but the facts of the namespace, once."""

    def __init__(self, namespace: str, clock: Clock, *, examine: Address | None) -> None:
        """`examine`: the server to look at before it is trusted, where it is one to look at."""
        self._name, self._clock, self._examine = namespace, clock, examine
        self._ids = RunIds()
        self._space: Namespace | None = None
        self._plain = Drafting({})

    def space(self) -> Steps[Namespace]:
        """The facts of the namespace."""
        if self._space is None:
            if self._examine is not None:
                found = yield from checks.examine(self._examine, self._name)
                checks.refuse(found)
                for finding in found:
                    log.warning("%s", finding.sentence)
            known = yield from _reading(namespace_plans.known(self._name))
            self._space = known or (yield from namespace_plans.found(self._name, birth=os.urandom(8).hex()))
        return self._space

    # ---- enqueue

    def enqueue(
        self, what: Inputs[Any] | str, values: Mapping[str, Any] | None, options: Mapping[str, Any], grip: Grip[H]
    ) -> Steps[H]:
        kind, values = (what.kind, what.values) if isinstance(what, Inputs) else (what, values or {})
        around = current.get()
        plain = around is None and options.keys() <= {"key"}  # as most are: nothing to check again
        drafting = self._plain if plain else Drafting(without(options, "key", "id"), around)
        drafts = [drafting.draft(kind, values, options.get("key"))]
        given = options.get("id")
        runs, answers = yield from self._hand_over(drafting, drafts, () if given is None else (given,))
        handles = [grip(id, created) for id, created in _acknowledged(answers)]
        if not handles:
            raise _trouble(answers, runs, (), ())
        return handles[0]

    def enqueue_many(self, items: Iterable[Any], options: Mapping[str, Any], grip: Grip[H]) -> Steps[list[H]]:
        """Batch by batch: what is not sent yet is not held. `sent` are the ids so far, in the order of the inputs."""
        drafting, key_of = Drafting(without(options, "key", "ids"), current.get()), options.get("key")
        given: Sequence[str] = tuple(options.get("ids", ()))
        handles: list[H] = []
        sent: list[str] = []
        acknowledged: list[str] = []
        try:
            for drafts in batches(_drafts(items, drafting, key_of)):
                runs, answers = yield from self._hand_over(drafting, drafts, given[len(sent) : len(sent) + len(drafts)])
                sent += [run.id for run in runs]
                for id, created in _acknowledged(answers):
                    acknowledged.append(id)
                    handles.append(grip(id, created))
                if len(handles) < len(sent):
                    raise _trouble(answers, runs, sent, acknowledged)
        except Exception as error:
            if acknowledged and not isinstance(error, Unconfirmed):
                error.add_note(f"{len(acknowledged):,} runs of this call were enqueued before it")
            raise
        return handles

    def _hand_over(
        self, drafting: Drafting, drafts: Sequence[Draft], given: Sequence[str]
    ) -> Steps[tuple[list[NewRun], list[Any]]]:
        space = self._space or (yield from self.space())
        ids = given_ids(given, drafts, space.partitions) if given else ()
        runs = drafting.runs(drafts, self._ids, self._clock.now(), space.partitions, ids)
        if space.partitions > 1 and not ids:
            return (yield from self._hand_over_anywhere(space, runs))
        answers = yield from self._enqueue(space, runs)
        return runs, answers

    def _hand_over_anywhere(self, space: Namespace, runs: list[NewRun]) -> Steps[tuple[list[NewRun], list[Any]]]:
        """A run without a key goes to another partition where its own can't be reached, while it is sure that it was not sent."""
        answers = yield from self._enqueue(space, runs, fail_fast=True)
        closed: set[int] = set()
        while away := [i for i, answer in enumerate(answers) if isinstance(answer, Unreachable)]:
            closed |= {partition_of(runs[i].id, space.partitions) for i in away}
            open_ones = [partition for partition in range(space.partitions) if partition not in closed]
            free = [i for i in away if open_ones and not runs[i].once]
            for i in free:
                runs[i] = runs[i]._replace(id=self._ids.make(self._clock.now(), random.choice(open_ones)))
            others = yield from self._enqueue(space, [runs[i] for i in away], fail_fast=bool(free))
            for i, answer in zip(away, others, strict=True):
                answers[i] = answer
            if not free:  # all that is left must go where it can't: it was waited for
                break
        return runs, answers

    def _enqueue(self, space: Namespace, runs: Sequence[NewRun], *, fail_fast: bool = False) -> Steps[list[Any]]:
        answers = yield from client_plans.enqueue(space, runs, fail_fast=fail_fast)
        if any(answer == ("mismatch", "") for answer in answers):
            space = yield from self._anew(space)
            answers = yield from client_plans.enqueue(space, runs, fail_fast=fail_fast)
        return answers

    def _anew(self, before: Namespace) -> Steps[Namespace]:
        """The namespace is not the one that was opened: the server was flushed, or an old backup was brought back."""
        self._space = space = yield from namespace_plans.found(self._name, birth=os.urandom(8).hex())
        if space.partitions != before.partitions:
            raise NotConfigured(
                f"namespace {self._name!r} was founded anew with {space.partitions} partitions, and had {before.partitions}: "
                "nothing was enqueued; call again"
            )
        if space.birth != before.birth:
            log.warning("namespace %r was founded anew since it was opened: what it held before is gone", self._name)
        return space

    # ---- one run

    def view(self, id: str) -> Steps[RunView]:
        keys = yield from self._keys(id)
        reply = yield from _reading(client_plans.view(keys, id))
        if reply is None:
            raise _not_found(id)
        return run_view(id, reply)

    def cancel(self, id: str, grace: float) -> Steps[Status]:
        """What it is now: cancelled; running, and its owner was asked; or the status in which it had ended before."""
        status, _ = yield from self._cancelled(id, grace)
        return status

    def _cancelled(self, id: str, grace: float) -> Steps[tuple[Status, int]]:
        """What it is now, and in which life."""
        keys = yield from self._keys(id)
        (counters,) = yield from self._fields(keys, id, "counters")
        life = read_counters(id, counters).life
        answer, *rest = yield from client_plans.cancel(keys, id, operation=_operation(), grace=grace, life=life)
        match answer:
            case "cancelled":
                return Status.CANCELLED, life
            case "cancelling":
                return Status.RUNNING, life
            case "ended":
                return Status(rest[0]), life
            case "changed":
                raise Changed(f"run {id} was revived meanwhile; it was not cancelled")
            case "missing":
                raise _not_found(id)
            case _:
                raise BadCall(f"cancel answered {answer!r}")

    def cancel_tree(self, id: str, grace: float) -> Steps[dict[str, Status]]:
        """What the run and each one below it is now."""
        status, life = yield from self._cancelled(id, grace)
        space, root = (yield from self.space()), Felled(id, life, status)
        below = yield from tree_plans.cancel_below(space, root, operation=_operation(), grace=grace)
        return {id: status, **below}

    def revive(self, id: str, from_start: bool) -> Steps[None]:
        keys = yield from self._keys(id)
        names = ("counters", "once", "cancel", "ended")
        fields = yield from self._fields(keys, id, *names, *SPEC_FIELDS)
        counters, once, cancel, ended = fields[: len(names)]
        spec = join_spec(dict(zip(SPEC_FIELDS, fields[len(names) :], strict=True)))
        if not spec:
            raise NotFound(f"run {id} can't be revived: nothing was kept of it (retention=0)")
        its = digest_inputs(read_spec(spec, f"the spec of run {id}")[0]) if once else ""
        life = read_counters(id, counters).life
        if cancel and ended:  # before it can run again: what it enqueues is wanted then
            space = yield from self.space()
            yield from tree_plans.revived(space, Felled(id, life))
        answer = yield from client_plans.revive(
            keys, id, operation=_operation(), life=life, from_start=from_start, digest=its
        )
        match answer:
            case "queued":
                return
            case "changed":
                raise Changed(f"run {id} was revived by another meanwhile")
            case "running":
                raise Changed(f"run {id} has not ended; only a failed, dead or cancelled run is revived")
            case "completed":
                raise Changed(f"run {id} has completed; only a failed, dead or cancelled run is revived")
            case "conflict":
                raise KeyConflict(f"run {id} can't be revived: its key names another run by now")
            case "unreadable":
                raise Unreadable(f"the checkpoint of run {id} can't be read: revive it from the start")
            case "missing":
                raise _not_found(id)
            case _:
                raise BadCall(f"revive answered {answer!r}")

    def discard(self, id: str) -> Steps[Status]:
        """The status in which it had ended."""
        keys = yield from self._keys(id)
        (counters,) = yield from self._fields(keys, id, "counters")
        answer, *rest = yield from client_plans.discard(keys, id, read_counters(id, counters).life)
        match answer:
            case "discarded":
                return Status(rest[0])
            case "open":
                raise Changed(f"run {id} has not ended (it is {rest[0]}); only an ended run is discarded")
            case "changed":
                raise Changed(f"run {id} was revived meanwhile; it was not discarded")
            case "missing":
                raise _not_found(id)
            case _:
                raise BadCall(f"discard answered {answer!r}")

    def position(self, id: str) -> Steps[int | None]:
        """How many are before it in its queue and kind, over all partitions and schemas; None where it isn't queued."""
        keys = yield from self._keys(id)
        status, where, counters = yield from self._fields(keys, id, "status", "route", "counters")
        if status != b"queued":
            return None
        space = yield from self.space()
        score = read_counters(id, counters).score
        return (yield from _reading(overview.before(space, keys, id, text(where), score)))

    # ---- endings

    def look(self, ids: Sequence[str], client: str) -> Steps[list[Ending]]:
        """Those of the runs that have ended, in the order of their endings; for the others the client will be woken."""
        endings: list[Ending] = []
        for start in range(0, len(ids), LOOK_AT_ONCE):
            part = ids[start : start + LOOK_AT_ONCE]
            calls: list[Request] = []
            for id in part:
                keys = yield from self._keys(id)
                calls.append(scripts.WAIT.call(keys.at, id=id, client=client, ttl=client_plans.WAITER_TTL))
            replies = yield calls
            for id, reply in zip(part, replies, strict=True):
                if isinstance(reply, Exception):
                    raise _for_reading(reply)
                if word(reply) == "missing":
                    raise _not_found(id)
                if word(reply) == "ended":
                    endings.append(Ending.of(id, reply[1:]))
        return sorted(endings, key=lambda ending: ending.at)

    def places(self, client: str) -> Steps[dict[str, Keys]]:
        """Where a client is woken: in every partition."""
        space = yield from self.space()
        return {keys.wake(client): keys for keys in space.everywhere()}

    # ---- many runs

    def runs(
        self, status: Status | str | None, kind: str | None, queue: str | None, limit: int
    ) -> Steps[list[RunView]]:
        listing = Listing.of(status, kind, queue, limit)
        space = yield from self.space()
        return (yield from _reading(listing.views(space)))

    def walk(self, walk: Walk) -> Steps[list[str]]:
        """The ids of all runs that are meant."""
        space = yield from self.space()
        return (yield from _reading(walk.ids(space)))

    def each(
        self, ids: Iterable[str], plan: Callable[[Operations, str], Steps[T]]
    ) -> Steps[list[T | CoordinatorError]]:
        """The same for each of the runs, side by side: what came of it, or its error."""
        yield from self.space()  # once for all
        return (yield from together(plan(self, id) for id in ids))

    def workers(self) -> Steps[list[WorkerView]]:
        space = yield from self.space()
        return (yield from _reading(overview.workers(space)))

    def status(self) -> Steps[Overview]:
        space = yield from self.space()
        return (yield from _reading(overview.whole(space)))

    # ---- schedules

    def schedule(
        self,
        name: str,
        when: scheduling.When,
        what: Inputs[Any] | str,
        values: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Steps[None]:
        new, generation = scheduling.wanted(name, when, what, values, options), _operation()
        space = yield from self.space()
        answer = yield from schedule_plans.replace(_home(space, name), space.birth, new, generation)
        if answer == "mismatch":
            space = yield from self._anew(space)
            answer = yield from schedule_plans.replace(_home(space, name), space.birth, new, generation)
        if answer != "ok":
            raise Unreadable(f"schedule {name} was not set: a key of the server that it needs holds something else")

    def pause_schedule(self, name: str, paused: bool) -> Steps[None]:
        space = yield from self.space()
        if (yield from schedule_plans.pause(_home(space, name), name, _operation(), paused=paused)) != "ok":
            raise _no_schedule(name)

    def unschedule(self, name: str) -> Steps[None]:
        space = yield from self.space()
        if (yield from schedule_plans.remove(_home(space, name), name, _operation())) != "ok":
            raise _no_schedule(name)

    def schedules(self) -> Steps[list[ScheduleView]]:
        """All of them, by name."""
        space = yield from self.space()
        found: list[ScheduleView] = []
        for keys in space.everywhere():
            rows = yield from _reading(schedule_plans.listed(keys))
            found += [scheduling.view(name, fields) for name, fields in rows]
        return sorted(found, key=lambda view: view.name)

    # ---- pausing

    def pause(self, queue: str | None, kind: str | None) -> Steps[bool]:
        """Whether that is new, in any partition."""
        return (yield from self._in_every_partition(client_plans.pause, _paused_name(queue, kind)))

    def unpause(self, queue: str | None, kind: str | None) -> Steps[bool]:
        """Whether it was paused, in any partition."""
        return (yield from self._in_every_partition(client_plans.unpause, _paused_name(queue, kind)))

    def _in_every_partition(self, plan: Callable[[Keys, str], Steps[bool]], paused: str) -> Steps[bool]:
        space = yield from self.space()
        changed = False
        for keys in space.everywhere():
            changed |= yield from plan(keys, paused)
        return changed

    # ---- shared

    def _keys(self, id: str) -> Steps[Keys]:
        space = self._space or (yield from self.space())
        try:
            return space.keys(partition_of(id, space.partitions))
        except BadName as error:
            raise NotFound(str(error)) from None

    def _fields(self, keys: Keys, id: str, *fields: str) -> Steps[list[Any]]:
        """Fields of a run's hash; the first must be there."""
        values: list[Any] = yield from _reading(_one(read(keys.at, "HMGET", keys.run(id), *fields)))
        if values[0] is None:
            raise _not_found(id)
        return values


# ---- words into errors -----------------------------------------------------------------------------------------------


def _drafts(
    items: Iterable[Any], drafting: Drafting, key_of: Callable[[Mapping[str, Any]], str] | None
) -> Generator[Draft, None, None]:
    for item in items:
        kind, values = kind_and_values(item)
        yield drafting.draft(kind, values, None if key_of is None else key_of(values))


def _acknowledged(answers: Sequence[Any]) -> list[tuple[str, bool]]:
    """Id and whether it is new, of the runs that are surely there."""
    return [(a[1], a[0] == "created") for a in answers if not isinstance(a, Exception) and a[0] in ("created", "found")]


def _trouble(
    answers: Sequence[Any], runs: Sequence[NewRun], sent: Sequence[str], acknowledged: Sequence[str]
) -> Exception:
    """What to raise where not all were acknowledged. Where some were, the server's absence is Unconfirmed."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    doubts = (Unconfirmed, Unreachable) if acknowledged else Unconfirmed
    for error in errors:
        if isinstance(error, doubts):
            return Unconfirmed(str(error), sent or [run.id for run in runs], acknowledged)
    if errors:
        return errors[0]
    for run, (answer, other) in zip(runs, answers, strict=True):
        if answer == "conflict":
            return KeyConflict(f"key {run.once!r} belongs to run {other}, which has other inputs")
        if answer == "unreadable":
            return Unreadable(f"run {run.id} was not enqueued: a key of the server that it needs holds something else")
        if answer == "blocked":
            return TreeCancelled(
                f"run {other} was cancelled with all that is below it: nothing more is enqueued there", parent=other
            )
        if answer == "mismatch":
            return NotConfigured(
                "the server is being flushed or brought back from a backup: nothing was enqueued; call again"
            )
    return BadCall(f"enqueue answered {answers!r:.200}")


def _paused_name(queue: str | None, kind: str | None) -> str:
    """How a paused queue or kind is remembered (see claim.lua)."""
    if (queue is None) == (kind is None):
        raise BadOption("say which to pause or unpause: a queue or a kind, and not both")
    return f"queue:{name(queue, 'queue')}" if queue is not None else f"kind:{name(str(kind), 'kind')}"


def _operation() -> str:
    return os.urandom(8).hex()


def _home(space: Namespace, schedule: str) -> Keys:
    """A schedule lives in the partition of its runs, which follows from its name."""
    return space.keys(partition_for(schedule, space.partitions))


def _no_schedule(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name}: 'coordinator schedule list' shows those that are there")


def _not_found(id: str) -> NotFound:
    return NotFound(f"there is no run {id}: it was never enqueued in this namespace, or its retention is over")


def _for_reading(error: Exception) -> Exception:
    """A reading call that got no answer has changed nothing: there is nothing to confirm."""
    return Unreachable(str(error).partition(";")[0]) if isinstance(error, Unconfirmed) else error


def _reading(plan: Steps[T]) -> Steps[T]:
    try:
        return (yield from plan)
    except Unconfirmed as error:
        raise _for_reading(error) from None


def _one(request: Request) -> Steps[Any]:
    return (yield request)
