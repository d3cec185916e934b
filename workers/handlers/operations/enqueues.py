"""Runs that a handler enqueues and does not wait for.

`run.enqueue` is a step. It saves the id of the new run before it enqueues the run, and its answer after that. A later attempt gets
the saved answer, or repeats the enqueue with the saved id, so that the run exists once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from coordinator.client.run_builder import RunBuilder, RunRequest, as_inputs, check_key_ttl, without
from coordinator.encoding.codec import decode, encode
from coordinator.errors import BadOption, Refused
from coordinator.middleware import current_middleware
from coordinator.model.enqueue import HandlerOf, Inputs
from coordinator.model.run_id import RunIds
from coordinator.store.plans.clients import NewRun
from workers.handlers.checkpoint.draft import Cut, Draft
from workers.handlers.operations.children import ChildOptions, make_parent

MOST_IDS = 3  # how many ids a step tries if the server refuses an id because of its age
_NO_IDS = RunIds()  # never makes an id: the step has made the id of the run before


class RunOptions(ChildOptions, total=False):
    """The options of `run.enqueue`."""

    key: str | None
    key_ttl: float | timedelta | None


class Enqueued(NamedTuple):
    """The server's answer to an enqueue.

    Attributes:
        run: The id of the run.
        created: False if the idempotency key belonged to a run that already existed.
    """

    run: str
    created: bool


class EnqueueBacking(Protocol):
    """The methods of a worker, or of its stand-in in a test, that an enqueue calls.

    All coroutines run on the worker's event loop.
    """

    def check_task(self) -> None:
        """Check that the handler's own task or thread makes the call.

        Raises:
            Refused: If another task or thread makes the call.
        """
        ...

    def raise_stop(self, may_drain: Callable[[], bool]) -> None:
        """Raise the requested stop, if there is one. See `Backing`."""
        ...

    async def flush(self, cut: Cut, may_drain: Callable[[], bool]) -> None:
        """Save a cut, and return when it is saved. See `Backing`."""
        ...

    async def wait_until_confirmed(self, may_drain: Callable[[], bool]) -> None:
        """Wait until the worker has confirmed its lease. See `Backing`."""
        ...

    def make_run_id(self, key: str) -> str:
        """Return a new run id: in the partition of the group or idempotency key, or of this run if `key` is empty."""
        ...

    async def enqueue(
        self, run: NewRun, inputs: Inputs[Any], options: Mapping[str, Any], may_drain: Callable[[], bool]
    ) -> Enqueued | None:
        """Enqueue a run. A run that exists already is left as it is. Wait while the server cannot be reached.

        Returns:
            The server's answer; None if the server refuses the id because of its age. In this case it is not known whether an
            earlier call has enqueued the run.

        Raises:
            Stopped: If a stop was requested.
            TreeCancelled: If the parent was cancelled together with its tree.
            KeyConflict: If the key belongs to a run with other inputs.
        """
        ...

    def call_at_end(self, close: Callable[[], object]) -> None:
        """Register a function that is called when the handler has ended."""
        ...


class Enqueues:
    """The enqueues of one attempt.

    Args:
        draft: The draft of the run's next checkpoint.
        backing: The worker's side of the attempt.
        run: The id of the run, which becomes the parent of the new runs.
        meta: The meta of the run, which the new runs inherit.
    """

    def __init__(self, draft: Draft, backing: EnqueueBacking, run: str, meta: Mapping[str, Any]) -> None:
        self._draft, self._backing, self._parent = draft, backing, make_parent(run, meta)

    def begin(
        self, what: Inputs[Any] | HandlerOf[Any] | str, values: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> tuple[object, Coroutine[Any, Any, Enqueued]]:
        """Check the arguments of `run.enqueue` in the handler's own task or thread.

        Returns:
            The handler of the new run, if it is known, and the coroutine that enqueues the run.

        Raises:
            Refused: If the call is inside a phase, while a wait is under way, or in another task or thread.
            BadOption: If an option is not valid.
        """
        for option in ("id", "ids", "parent"):
            if option in options:
                raise BadOption(f"run.enqueue has no option {option!r}: the run makes the id, and is the parent itself")
        inputs = as_inputs(what, values)
        check_key_ttl(options)
        builder = RunBuilder(without(options, "key", "group"), self._parent, current_middleware.get())
        request = builder.request(inputs.kind, inputs.values, options.get("key"), inputs.handler, options.get("group"))
        self._backing.check_task()
        field = self._draft.begin_wait(f"enqueue {inputs.kind}")
        self._draft.end_wait()
        return inputs.handler, self._enqueue(field, inputs, options, request, builder)

    async def _enqueue(
        self, field: str, inputs: Inputs[Any], options: Mapping[str, Any], request: RunRequest, builder: RunBuilder
    ) -> Enqueued:
        draft, backing, may_drain = self._draft, self._backing, self._draft.resumes_without_repeating
        saved = decode(draft.phases[field], field) if field in draft.phases else []
        if len(saved) == len(Enqueued._fields):
            return Enqueued(*saved)
        id = saved[0] if saved else ""
        for _ in range(MOST_IDS):
            if not id:
                id = backing.make_run_id(request.placed_by)
                draft.phases[field] = encode([id], field)
                await backing.flush(draft.cut(), may_drain)
            await backing.wait_until_confirmed(may_drain)
            backing.raise_stop(may_drain)
            (run,) = builder.runs([request], _NO_IDS, 0.0, 1, (id,))
            answer = await backing.enqueue(run, inputs, options, may_drain)
            if answer is not None:
                draft.phases[field] = encode([*answer], field)
                await backing.flush(draft.cut(), may_drain)
                return answer
            id = ""
        raise Refused(
            f"the run of kind {inputs.kind!r} was not enqueued: the server refuses new ids as too old or too new; "
            "compare the clocks of this machine and of the server"
        )
