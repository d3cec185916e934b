"""Child runs that a handler enqueues and waits for.

`gather` and `as_completed` are steps, like waits. The step saves a base id before its first child. The ids of its children count up
from the base, so that a later attempt finds the same children. The children live in the partition of the parent, where the script
that ends a child also stores its ending for the parent. The endings stay there. They are never copied into the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict

from coordinator.client.parent import Parent
from coordinator.client.run_builder import RunBuilder, RunRequest, inputs_of_item, without
from coordinator.encoding.codec import decode, encode
from coordinator.encoding.netstrings import split_netstrings
from coordinator.errors import BadOption, CoordinatorError, Refused
from coordinator.middleware import current_middleware
from coordinator.model.enqueue import Inputs
from coordinator.model.policies.budget import Budget
from coordinator.model.run import Failure, Status
from coordinator.model.run_id import RunIds, child_id, is_run_id
from coordinator.store.plans.attempts import ChildEnding, Collected, Condition
from coordinator.store.plans.clients import NewRun
from workers.handlers.checkpoint.bookkeeping import Base
from workers.handlers.checkpoint.draft import Cut, Draft

BATCH_RUNS = 500
BATCH_BYTES = 1024 * 1024
_NO_IDS = RunIds()  # never makes an id: the ids of children count up from the base of their step


class ChildOptions(TypedDict, total=False):
    """The options of `enqueue` that children of `gather` and `as_completed` may have."""

    queue: str
    priority: int
    delay: float | timedelta | None
    at: float | datetime | None
    expires: float | timedelta | None
    retention: float | timedelta | None
    schema: int
    meta: Mapping[str, Any] | None
    budget: Budget | None
    group: str | None


class ChildFailed(CoordinatorError):
    """The error of a child that did not complete.

    Attributes:
        run: The id of the child.
        kind: The kind of the child.
        status: The status in which the child ended: failed, dead or cancelled.
        failure: The error of the child, if it had one.
    """

    def __init__(self, run: str, kind: str, status: Status, failure: Failure | None, reason: str = "") -> None:
        said = f"{failure.type}: {failure.message}" if failure is not None else reason
        super().__init__(f"child run {run} of kind {kind!r} is {status}" + (f": {said}" if said else ""))
        self.run, self.kind, self.status, self.failure = run, kind, status, failure


@dataclass(frozen=True, slots=True)
class Done:
    """A child that has ended.

    Attributes:
        index: The position of the child among the inputs of the step, from 0.
        run: The id of the child.
        error: The reason why the child did not complete; None if it completed.
    """

    index: int
    run: str
    error: ChildFailed | None
    _value: Any = None

    @property
    def result(self) -> Any:
        """The value that the handler of the child returned.

        Raises:
            ChildFailed: If the child did not complete.
        """
        if self.error is not None:
            raise self.error
        return self._value


@dataclass(frozen=True, slots=True)
class Child:
    """A joined child that the step is about to enqueue.

    Attributes:
        index: The position of the child in the step, from 0.
        inputs: The kind and the inputs of the child.
        run: The run to enqueue.
    """

    index: int
    inputs: Inputs[Any]
    run: NewRun


class ChildBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that steps with children call.

    All coroutines run on the worker's event loop.
    """

    @property
    def life(self) -> int:
        """The life of the run. It grows when the run is revived."""
        ...

    def check_wait(self, cut: Callable[[], Cut]) -> None:
        """Check that a wait may begin here. See `WaitBacking`."""
        ...

    def start_lingering(self, cut: Callable[[], Cut]) -> None:
        """Begin to count the time for which a waiting handler stays in its process. See `WaitBacking`."""
        ...

    def make_child_base(self) -> str:
        """Return a new id for the first child of a step, in the partition of the run."""
        ...

    def offer(self, cut: Cut) -> None:
        """Offer a cut to be saved, and return immediately."""
        ...

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        """Save a cut, and return when it is saved. See `Backing`."""
        ...

    async def linger(self, condition: Condition, now: int) -> None:
        """Wait until there is a reason to ask the server again, or suspend the run. See `WaitBacking`."""
        ...

    async def join_children(self, base: str, count: int, old: str) -> None:
        """Announce the children of a step to the server. See `join_children` in coordinator/store/plans/attempts.py."""
        ...

    async def drop_steps(self, bases: Sequence[str]) -> bool:
        """Let the steps with these bases go. Return False if the server can't do it now.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
        """
        ...

    async def spawn(self, children: Sequence[Child]) -> None:
        """Enqueue children. A child that exists already is left as it is.

        Raises:
            Stopped: If a stop was requested, or the run belongs to another owner.
            TreeCancelled: If the run was cancelled together with its tree.
        """
        ...

    async def collect(self, base: str, by: str, start: int) -> Collected:
        """Return a page of the endings of a step's children. See `collect` in coordinator/store/plans/attempts.py."""
        ...


def _always() -> bool:
    return True


def make_parent(run: str, meta: Mapping[str, Any]) -> Parent:
    """Return the parent of new runs. A run in memory has a short id, which is replaced by a valid run id."""
    return Parent(run if is_run_id(run) else "0" * 20 + "-00", meta)


class Children:
    """The steps of one attempt that enqueue children and wait for them.

    Args:
        draft: The draft of the run's next checkpoint.
        backing: The worker's side of the attempt.
        run: The id of the run.
        meta: The meta of the run, which its children inherit.
    """

    def __init__(self, draft: Draft, backing: ChildBacking, run: str, meta: Mapping[str, Any]) -> None:
        self._draft, self._backing, self._parent = draft, backing, make_parent(run, meta)

    def begin(self, name: str, items: Sequence[Any], options: Mapping[str, Any], at_once: int | None) -> Step:
        """Check the options of a step with children in the handler's own task or thread, begin the step, and return it.

        Raises:
            Refused: If the step is inside a phase, or another wait is under way.
            BadOption: If an option is not valid.
            Stopped: If a stop was requested.
        """
        if str(name) != name or not 1 <= len(name) <= 200 or not name.isprintable():
            raise Refused(f"a step needs a name of 1 to 200 printable characters, not {name!r:.220}")
        if at_once is not None and (type(at_once) is not int or at_once < 1):
            raise BadOption(f"at_once={at_once!r} is not a whole number of 1 or more")
        if "key" in options or "id" in options or "ids" in options:
            raise BadOption("children that a run waits for can't have a key or an id of their own")
        inputs = [inputs_of_item(item) for item in items]
        builder = RunBuilder(without(options, "group"), self._parent, current_middleware.get())
        group = options.get("group")
        requests = [builder.request(one.kind, one.values, None, one.handler, group) for one in inputs]
        self._backing.check_wait(self._draft.cut)
        field = self._draft.begin_wait(f"gather {name}")
        self._draft.end_wait()
        return Step(self._draft, self._backing, self._parent.run, field, inputs, requests, builder, at_once)

    async def end_turn(self) -> None:
        """Let the steps of ended turns go: coordinators cancel their open children, and the server deletes their results.

        The end of the turn is saved first. A resumed attempt that finds the turn unfinished needs its children again.

        Raises:
            Stopped: If a stop was requested.
        """
        await self._backing.flush(self._draft.cut(), _always)
        if await self._backing.drop_steps(self._draft.bookkeeping.left):
            self._draft.bookkeeping.left = []


class Step:
    """One call of `gather` or `as_completed`: enqueue the children of the step, and wait for them."""

    def __init__(
        self,
        draft: Draft,
        backing: ChildBacking,
        run: str,
        field: str,
        inputs: Sequence[Inputs[Any]],
        requests: Sequence[RunRequest],
        builder: RunBuilder,
        at_once: int | None,
    ) -> None:
        self._draft, self._backing, self._run, self._field, self._turn = draft, backing, run, field, draft.turn
        self._inputs, self._requests, self._builder = inputs, requests, builder
        self._at_once = at_once or len(inputs)
        self._base = Base(0, "", 0)
        self._lingers_for = 0

    async def gather(self, return_failures: bool) -> list[Any]:
        """Wait until all children have ended, and return their results in the order of the inputs. See `AsyncRun.gather`."""
        if not self._inputs:
            return []
        await self._prepare()
        ended, count = 0, len(self._inputs)
        while not self._is_over and ended < count:
            await self._spawn(ended + self._at_once)
            ended = (await self._backing.collect(self._base.id, "index", count)).ended
            if ended < count and self._base.made >= min(count, ended + self._at_once):
                # With `at_once`, wait only until half of the open children have ended, and then enqueue the next ones.
                need = count if self._base.made == count else min(count, ended + max(1, self._at_once // 2))
                await self._wait(need)
        if not self._is_over:
            self._draft.phases[self._field] = encode(count, "step")
            self._backing.offer(self._draft.cut())
        found: list[Any] = []
        while len(found) < count:
            page = await self._backing.collect(self._base.id, "index", len(found))
            if not page.endings:
                raise Refused(f"the results of step {self._name!r} are gone: revive the run from the start")
            found += [self._done(one) for one in page.endings]
        if return_failures:
            return [one.error if one.error is not None else one.result for one in found]
        return [one.result for one in found]

    async def as_completed(self) -> AsyncIterator[Done]:
        """Yield each child that has ended, in the stored order of the endings. See `AsyncRun.as_completed`."""
        if not self._inputs:
            return
        self._check_turn()
        await self._prepare()
        order, ended = 0, 0
        while order < len(self._inputs):
            await self._spawn(max(ended, order) + self._at_once)
            page = await self._backing.collect(self._base.id, "order", order + 1)
            ended = page.ended
            for one in page.endings:
                order += 1
                yield self._done(one)
                self._check_turn()
            if not page.endings:
                # The context manager of middleware is around the wait alone: the handler works between two waits.
                make = getattr(self._backing, "around_step", None)
                with contextlib.nullcontext() if make is None else make("as_completed", self._name):
                    await self._wait(order + 1)

    def _check_turn(self) -> None:
        """Check that the step is used in the turn in which it began.

        The end of a turn drops its children. And an attempt that resumes in a later turn would iterate from the first child on.

        Raises:
            Refused: If the step began in another turn, before the loop or inside it.
        """
        if self._draft.turn != self._turn:
            raise Refused(
                f"the children of step {self._name!r} began in another turn of run.loop or outside of it: iterate over all of "
                "them in one turn, or before the loop"
            )

    @property
    def _name(self) -> str:
        """The name that the handler gave to the step, without the number that tells equal names apart."""
        return self._field.partition(" ")[2].rpartition("#")[0]

    @property
    def _is_over(self) -> bool:
        return self._field in self._draft.phases

    async def _prepare(self) -> None:
        """Save the base of the step, and announce the step to the server."""
        bases, life = self._draft.bookkeeping.bases, self._backing.life
        known = bases.get(self._field)
        if known is None or known.life != life:
            # A revived run gets new children, but keeps the results of earlier children that completed. The attempt may end before
            # the new base is announced to the server, so the old base is saved too.
            old = (known.old or known.id) if known is not None else ""
            self._draft.phases.pop(self._field, None)
            bases[self._field] = Base(life, self._backing.make_child_base(), 0, old)
            await self._backing.flush(self._draft.cut(), _always)
        self._base = bases[self._field]
        self._check_inputs(self._base.made)
        if self._is_over:
            self._check_inputs(decode(self._draft.phases[self._field], "step"), at_least=len(self._inputs))
        else:
            await self._backing.join_children(self._base.id, len(self._inputs), self._base.old)
            self._base = bases[self._field] = self._base._replace(old="")

    def _check_inputs(self, earlier: int, at_least: int = 0) -> None:
        """Check that the step has an input for each child of earlier attempts, and that a finished step has no new inputs.

        Raises:
            Refused: If the step has fewer inputs than children, or a finished step has new inputs.
        """
        if not at_least <= earlier <= len(self._inputs):
            than = "more" if earlier < at_least else "fewer"
            raise Refused(
                f"step {self._name!r} has {len(self._inputs)} inputs now, {than} than in an earlier attempt: "
                "give the same inputs in each attempt, for example by returning them from a phase"
            )

    async def _spawn(self, most: int) -> None:
        """Enqueue children in batches, until `most` children of the step are enqueued."""
        if self._is_over:
            return
        while self._base.made < min(most, len(self._inputs)):
            batch, size = list[Child](), 0
            for index in range(self._base.made, min(most, len(self._inputs))):
                request = self._requests[index]
                if batch and (len(batch) >= BATCH_RUNS or size + len(request.spec) > BATCH_BYTES):
                    break
                size += len(request.spec)
                batch.append(Child(index, self._inputs[index], self._new_run(index, request)))
            await self._backing.spawn(batch)
            self._base = self._draft.bookkeeping.bases[self._field] = self._base._replace(
                made=self._base.made + len(batch)
            )

    def _new_run(self, index: int, request: RunRequest) -> NewRun:
        id = child_id(self._base.id, index)
        (run,) = self._builder.runs([request], _NO_IDS, 0.0, 1, (id,))
        return run._replace(parent=f"{self._run} {self._base.life} {self._base.id} {index}")

    async def _wait(self, need: int) -> None:
        """Wait until `need` children have ended."""
        if need != self._lingers_for:
            self._lingers_for = need
            self._backing.start_lingering(self._draft.cut)
        self._draft.resume_wait(self._field)
        try:
            await self._backing.flush(self._draft.cut(), _always)
            await self._backing.linger(Condition(None, {}, {self._base.id: need}), 0)
        finally:
            self._draft.end_wait()

    def _done(self, ending: ChildEnding) -> Done:
        # An attempt that was killed may have enqueued more children than its checkpoint says.
        self._check_inputs(ending.index + 1)
        inputs, run = self._inputs[ending.index], child_id(self._base.id, ending.index)
        place = f"the result of child run {run}"
        if ending.status == Status.COMPLETED:
            value = decode(ending.payload, place) if ending.payload else None
            read = _read_result(inputs.handler)
            return Done(ending.index, run, None, value if read is None else read(value))
        error, reason = split_netstrings(ending.payload)
        failure = Failure(*decode(error, place)[:3]) if error else None
        return Done(
            ending.index,
            run,
            ChildFailed(run, inputs.kind, Status(ending.status), failure, reason.decode(errors="replace")),
        )


def _read_result(handler: object) -> Callable[[Any], Any] | None:
    read: Callable[[Any], Any] | None = getattr(handler, "read_result", None)
    return read
