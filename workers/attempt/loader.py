"""Prepare an attempt: load and migrate the checkpoint, check the inputs, and build the `Run` that the handler receives."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.client.parent import Parent, current_parent
from coordinator.clock import Clock
from coordinator.encoding.checkpoint_head import NO_CHECKPOINT, CheckpointHead
from coordinator.encoding.codec import decode
from coordinator.encoding.spec import read_spec
from coordinator.errors import CoordinatorError, Unreadable
from coordinator.middleware import NO_MIDDLEWARE, current_middleware, read_headers
from coordinator.model.policies.budget import NOTHING, Budget, sum_spend
from coordinator.model.run import AttemptRecord
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from coordinator.views.ending import read_failure
from workers.attempt.attempt import Attempt
from workers.attempt.endings import attempt_info
from workers.attempt.measuring import SaveMeter, SteppedSender, measure_resumption, read_history
from workers.attempt.output.emitter import Emitter
from workers.attempt.save_batch import SaveBatch
from workers.attempt.saver import Saver, Send
from workers.attempt.waits.requests import Limits, Waiter
from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import INPUTS, Draft, loaded
from workers.handlers.checkpoint.migration import migrated
from workers.handlers.current_run import enter_run
from workers.handlers.facts import Facts, Resumed, Stopped
from workers.handlers.run import Run
from workers.metrics.worker_metrics import WorkerMetrics
from workers.throttle import Throttle

logger = logging.getLogger(__name__)

LOST_EFFECTS = (
    "the effects of the run are lost or damaged, so it is unknown which of them took place: find out, then revive the run with "
    "forget_effects=True (coordinator revive RUN --forget-effects), which calls all of them again"
)


class BadInputs(CoordinatorError):
    """The error of a run whose inputs do not fit the signature of its handler."""


@dataclass(frozen=True, slots=True)
class Loader:
    """Prepare the attempts of a process.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
        resources: The resources that the registries opened, by kind.
        waiter: Sends the requests for the waits, children and enqueues of the attempts.
        emitter: Sends the events of the attempts.
        saves: Sends the saves of the attempts.
        metrics: Measures resumptions; None to measure nothing.
        limits: Sends the requests for the limited calls of the attempts.
        meters: Measure the saves, by kind. Empty to measure nothing.
    """

    wire: AsyncWire
    clock: Clock
    resources: Mapping[str, Any]
    waiter: Waiter
    emitter: Emitter
    saves: SaveBatch
    metrics: WorkerMetrics | None = None
    limits: Limits | None = None
    meters: Mapping[str, SaveMeter] = field(default_factory=dict)

    async def load(self, attempt: Attempt) -> tuple[Run[Any] | AsyncRun[Any], dict[str, Any]]:
        """Return the run and the inputs that the handler is called with.

        Raises:
            Stopped: If the run belongs to another owner now.
            Exception: Any other error. The handler's first line has then not been reached.
        """
        claimed, handler = attempt.claimed, attempt.handler
        draft, head, unfinished = await self._load_checkpoint(attempt)
        inputs, meta, extra = read_spec(claimed.spec, "the run")
        if "group" in extra:
            attempt.has_group = True
        older = 0 < head.schema < handler.schema
        if older:
            draft = migrated(draft, head, inputs, handler)
        if INPUTS in draft.phases:
            inputs = decode(draft.phases[INPUTS], "inputs")
        if (wrong := handler.fits(inputs)) is not None:
            raise BadInputs(wrong)
        try:
            arguments = handler.arguments(inputs)
        except CoordinatorError as error:
            raise BadInputs(str(error)) from error
        if attempt.middleware is not NO_MIDDLEWARE:
            await self._prepare_middleware(attempt, meta, read_headers(extra))
        attempt.draft = draft
        attempt.saver = self._make_saver(attempt, draft, head)
        if older:
            attempt.saver.save_whole()
        current_parent.set(Parent(claimed.id, meta))
        resumed = self._resumed(attempt, head, unfinished)
        if resumed is not None and self.metrics is not None and resumed.cause == "recover":
            attempt.measuring = attempt.loop.create_task(measure_resumption(self.wire, self.metrics, attempt))
        budget = Budget.load(extra["budget"]) if "budget" in extra else handler.budget
        spent = sum_spend(claimed.spend) if claimed.spend else NOTHING
        facts = Facts(claimed.id, handler.kind, inputs, meta, attempt.number, claimed.token, resumed, budget, spent)
        attempt.facts = facts
        attempt.waiter, attempt.emitter, attempt.limits = self.waiter, self.emitter, self.limits
        make = AsyncRun if handler.is_async else Run
        run = make(facts, self.resources.get(handler.kind), draft, attempt, handler.read_signal)
        enter_run(run)
        return run, arguments

    async def _prepare_middleware(self, attempt: Attempt, meta: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        chain = attempt.middleware
        history: tuple[AttemptRecord, ...] = ()
        if chain.reads_history and attempt.claimed.cause:
            history = await read_history(self.wire, attempt)
        attempt.info = attempt_info(attempt, meta, headers, history)
        attempt.around_step = chain.steps_of(attempt.info)
        current_middleware.set(chain)

    async def _load_checkpoint(self, attempt: Attempt) -> tuple[Draft, CheckpointHead, list[Any]]:
        """Return the draft, the head and the unfinished messages of the run's checkpoint.

        The claim brings a small checkpoint. A large one is loaded in pages here.

        Raises:
            Stopped: If the run belongs to another owner now.
            Unreadable: If the checkpoint is damaged, or has a schema that the handler does not read.
        """
        parts = attempt.claimed.checkpoint
        if parts is None:
            return Draft(), NO_CHECKPOINT, []
        if parts == "paged":
            plan = worker_plans.load(attempt.lease.keys, attempt.id, attempt.token)
            attempt.loading = 0
            try:
                parts = await drive_async(self.wire, plan, give_up=_RepeatedLoad(attempt))
            finally:
                attempt.loading = None
            if parts == "fenced":
                attempt.request_stop("lost")
                raise Stopped("lost")
            if parts == "unreadable":
                raise Unreadable("the head of the checkpoint can't be read")
            if parts == "lost":
                raise Unreadable(LOST_EFFECTS)
        draft, head, unfinished = loaded(parts)
        if head.schema > attempt.handler.schema:
            raise Unreadable(f"the checkpoint has schema {head.schema}, and the handler reads {attempt.handler.schema}")
        return draft, head, unfinished

    def _make_saver(self, attempt: Attempt, draft: Draft, head: CheckpointHead) -> Saver:
        handler = attempt.handler
        send: Send = _Sender(self.wire, attempt)
        if attempt.around_step is not None:
            send = SteppedSender(send, attempt.around_step)
        saver = Saver(head, handler.schema, draft.cut(), Throttle(handler.throttle), self.clock, send)
        if attempt.around_step is None:  # middleware surrounds each save, so each save needs a task
            saver.use_batch(self.saves, attempt.lease.keys, attempt.id, attempt.token)
        if self.meters:
            saver.measure = self.meters[handler.kind]
        saver.on_fenced = attempt.lose
        saver.may_carry_events = lambda: _may_carry_events(attempt)
        saver.has_unstored_spending = lambda: attempt.spend is not attempt.spend_stored
        saver.on_progress = lambda: attempt.observer.on_progress(attempt)
        return saver

    def _resumed(self, attempt: Attempt, head: CheckpointHead, unfinished: list[Any]) -> Resumed | None:
        cause = attempt.claimed.cause
        if not cause:
            return None
        cause, _, reason = cause.partition(" ")
        worker, _, code = attempt.claimed.prev.partition(" ")
        age = self.clock.now() - head.updated / 1000 if head.updated else None
        return Resumed(cause, age, worker, code, tuple(unfinished), read_failure(attempt.claimed.killed), reason)


async def _may_carry_events(attempt: Attempt) -> bool:
    emitter = attempt.emitter
    if emitter is None:
        return True
    if not await emitter.may_carry(attempt):
        return False
    await emitter.send_ahead(attempt)
    return True


class _RepeatedLoad:
    """The policy for a load that fails repeatedly: decide whether to give up, and log the 2nd, 4th, 8th, … failure."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __call__(self) -> bool:
        # This is called after the first repetition: two loads have failed by then.
        failures = self._attempt.loading = (self._attempt.loading or 1) + 1
        if failures.bit_count() == 1:
            logger.warning(
                "loading the checkpoint of run %s failed %d times; the worker tries again", self._attempt.id, failures,
                extra={"run": self._attempt.id},
            )  # fmt: skip
        return self._attempt.stopping is not None


@dataclass(slots=True)  # not frozen: every attempt makes one, and a frozen one takes longer to make
class _Sender:
    """Send one save to the server, without repeating it. The saver repeats a failed save with the newest cut.

    The total that the attempt has spent is stored before the save. A later attempt does not repeat saved work, so after a crash
    between the two requests the cost of that work would otherwise never be counted.
    """

    wire: AsyncWire
    attempt: Attempt

    async def __call__(self, delta: attempt_plans.Delta) -> tuple[str, int]:
        attempt = self.attempt
        if attempt.spend is not attempt.spend_stored and await self._store_spend() == "fenced":
            return "fenced", 0
        plan = attempt_plans.checkpoint(attempt.lease.keys, attempt.id, attempt.token, delta)
        return await drive_async(self.wire, plan, give_up=lambda: True)

    async def _store_spend(self) -> str:
        attempt, amount = self.attempt, self.attempt.spend
        plan = attempt_plans.spend(attempt.lease.keys, attempt.id, attempt.token, amount)
        word, _ = await drive_async(self.wire, plan, give_up=lambda: True)
        if word == "ok":
            attempt.spend_stored = amount
        return word
