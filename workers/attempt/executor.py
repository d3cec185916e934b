"""Carry out one attempt: load the run, call the handler, and classify the result or error of the handler as an outcome."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from coordinator.client.parent import current_parent
from coordinator.clock import Clock
from coordinator.errors import TreeCancelled
from coordinator.logs import about
from coordinator.model.outcome import Ending, NotStarted, Outcome, Raised, Returned, classify
from workers.attempt.attempt import Attempt
from workers.attempt.failure import hide_own_frames
from workers.attempt.kind_health import KindHealth
from workers.attempt.loader import BadInputs, Loader
from workers.handlers.async_run import AsyncRun
from workers.handlers.current_run import leave_run
from workers.handlers.facts import Stopped
from workers.handlers.run import Run
from workers.metrics.worker_metrics import WorkerMetrics


@dataclass(frozen=True, slots=True)
class Executor:
    """Carry out the attempts of a process.

    Attributes:
        clock: The time source.
        threads: The threads in which plain handlers run.
        loader: Prepares each attempt.
        health: Records which kinds have started.
        metrics: Measures how long the start of a handler takes; None to measure nothing.
    """

    clock: Clock
    threads: ThreadPoolExecutor
    loader: Loader
    health: KindHealth
    metrics: WorkerMetrics | None = None

    async def execute(self, attempt: Attempt) -> Outcome | None:
        """Carry out an attempt from its claim on.

        Returns:
            The outcome to record, or None if the worker has decided and recorded an outcome while the handler still ran.
        """
        about.set({"run": attempt.id, "kind": attempt.handler.kind, "attempt": attempt.number})
        attempt.began = claimed_at = self.clock.monotonic()
        if attempt.gate is not None:
            await attempt.gate
        ending = await self._run(attempt)
        leave_run()
        if isinstance(ending, Raised | NotStarted):
            hide_own_frames(ending.error)
        if not attempt.decide():
            return None
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await self._absorb_cancels(task)
        failures, age = 0, 0.0
        if isinstance(ending, Raised):
            failures = _consecutive_failures(attempt)
            age = _age_at_claim(attempt) + self.clock.monotonic() - claimed_at
        return classify(ending, attempt.stop_request, attempt.handler.retry, failures, age)

    async def _run(self, attempt: Attempt) -> Ending:
        try:
            run, inputs = await self.loader.load(attempt)
            # The reply to the claim may have taken longer than the lease. A handler starts only under a confirmed lease.
            await attempt.wait_until_confirmed()
        except Stopped as stop:
            return Raised(stop, stop=True)
        except BadInputs as error:
            return NotStarted(error.with_traceback(None))  # the message says everything; the frames are our own
        except Exception as error:  # noqa: BLE001  # whatever the error is, the handler was not reached
            return NotStarted(error)
        if attempt.stopping is not None:
            return Raised(attempt.stopping, stop=True)
        attempt.start()
        if attempt.gate is None and self.metrics is not None:
            self.metrics.started(attempt.handler.kind, self.clock.monotonic() - attempt.began)
        return await self._perform(attempt, run, inputs)

    async def _perform(self, attempt: Attempt, run: Run[Any] | AsyncRun[Any], inputs: dict[str, Any]) -> Ending:
        self.health.record_started(attempt.handler.kind)
        try:
            if attempt.handler.is_async:
                try:
                    if attempt.info is not None:
                        with attempt.middleware.around(attempt.info):
                            return Returned(await attempt.handler.function(run, **inputs))
                    return Returned(await attempt.handler.function(run, **inputs))
                finally:
                    attempt.close()
            context = contextvars.copy_context()
            call = lambda: context.run(_call_plain, attempt, run, inputs)  # noqa: E731  # a thread needs one callable
            ending: Ending = await attempt.loop.run_in_executor(self.threads, call)
            return mark_stop(ending)
        except BaseException as error:  # noqa: BLE001  # every way out of a handler is an ending
            return mark_stop(Raised(error))

    async def _absorb_cancels(self, task: asyncio.Task[Any]) -> None:
        """Clear the cancellations of the task that were meant for the handler, so that the outcome can still be recorded."""
        while task.cancelling():
            task.uncancel()
        try:
            await self.clock.asleep(0)
        except asyncio.CancelledError:
            return


def _age_at_claim(attempt: Attempt) -> float:
    """Return the age of the run in seconds when it was claimed, by the server's clock alone.

    A claim sets the epoch to the server's time in ms. The epoch is later than the server's time only if that clock went back.
    """
    return max(0.0, (attempt.counters.epoch - attempt.counters.created) / 1000)


def _consecutive_failures(attempt: Attempt) -> int:
    """Return how often the run failed before this attempt.

    Progress since the last failure resets the count, except for kinds whose retries begin from the start.
    """
    if attempt.handler.retry.from_start:
        return attempt.counters.failures
    progressed = attempt.saver is not None and attempt.saver.progress_since(attempt.counters.failed)
    return 0 if progressed else attempt.counters.failures


def _call_plain(attempt: Attempt, run: Any, inputs: dict[str, Any]) -> Ending:
    """Call a plain handler in its thread, and return its result or any exception as an Ending.

    Every exception is caught, because a StopIteration or a SystemExit that left the thread would break the event loop.
    """
    attempt.handler_thread = threading.get_ident()
    try:
        if attempt.info is not None:
            with attempt.middleware.around(attempt.info):
                return Returned(attempt.handler.function(run, **inputs))
        return Returned(attempt.handler.function(run, **inputs))
    except BaseException as error:  # noqa: BLE001  # every way out of a handler is an ending
        return Raised(error)
    finally:
        attempt.close()


def mark_stop(ending: Ending) -> Ending:
    """Return the ending, marked as stopped if its exception is a stop or a cancellation of the handler's task."""
    if isinstance(ending, Raised):
        return Raised(ending.error, stop=_is_stop(ending.error) or _is_cancelled(ending.error))
    return ending


def _is_cancelled(error: BaseException) -> bool:
    """Return True if the task of the attempt itself was cancelled, for example because the event loop is being closed.

    Such a cancellation is not a failure of the handler.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _is_stop(error: BaseException) -> bool:
    """Return True if an error means that the handler was stopped, and did not fail.

    A TaskGroup wraps a stop into an exception group. TreeCancelled for the run itself is a stop too: the run was cancelled,
    whether or not this worker has learned of it.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(_is_stop(inner) for inner in error.exceptions)
    if isinstance(error, TreeCancelled):
        around = current_parent.get()
        return around is not None and around.run == error.parent
    return isinstance(error, Stopped)
