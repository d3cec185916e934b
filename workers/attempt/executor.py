"""Carries out one attempt: load, start, perform, classify, finalise, report. Every way out becomes one of a few outcomes."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, assert_never

from coordinator.client.parent import Parent, current_parent
from coordinator.clock import Clock
from coordinator.encoding.checkpoint_head import NO_CHECKPOINT, CheckpointHead
from coordinator.encoding.codec import decode, encode
from coordinator.encoding.spec import read_spec
from coordinator.errors import CoordinatorError, NotPlain, TooLarge, TreeCancelled, Unconfirmed, Unreachable, Unreadable
from coordinator.logs import about
from coordinator.model.outcome import (
    Complete,
    Ending,
    Fail,
    Nothing,
    NotStarted,
    Outcome,
    Raised,
    Reject,
    Release,
    Returned,
    TryAgain,
    classify,
)
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from coordinator.views.ending import read_failure
from workers.attempt.attempt import Attempt
from workers.attempt.kind_health import KindHealth
from workers.attempt.saver import Saver
from workers.handlers.context import AsyncRun, Facts, Resumed, Run, Stopped
from workers.handlers.draft import INPUTS, RESULT_LIMIT, Draft, loaded
from workers.handlers.messages import kept
from workers.handlers.migration import migrated
from workers.throttle import Throttle

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Executor:
    """What all attempts of a process share."""

    wire: AsyncWire
    clock: Clock
    threads: ThreadPoolExecutor
    resources: Mapping[str, Any]
    health: KindHealth
    give_up: Callable[[], bool]
    refused: Callable[[str], None]

    async def execute(self, attempt: Attempt) -> Outcome | None:
        """An attempt from its claim to the outcome that is to be recorded; None where that was done without its handler."""
        kind = attempt.handler.kind
        about.set({"run": attempt.id, "kind": kind, "attempt": attempt.number})
        if attempt.gate is not None:
            await attempt.gate
        ending = await self._run(attempt)
        if attempt.ended:
            return None  # left behind: its run was released without it
        attempt.ended = True
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            await self._absorb_cancels(task)
        failures, age = 0, 0.0
        if isinstance(ending, Raised):
            failures = self._failures_in_a_row(attempt)
            age = self.clock.now() - attempt.counters.created / 1000
        return classify(ending, attempt.stop_asked, attempt.handler.retry, failures, age)

    # -- load, start, perform

    async def _run(self, attempt: Attempt) -> Ending:
        try:
            run, inputs = await self._start(attempt)
            # the answer of the claim may have been on its way for longer than the lease: nothing begins in a doubt
            await attempt.wait_until_confirmed()
        except Stopped as stop:
            return Raised(stop, stop=True)
        except Exception as error:  # noqa: BLE001  # whatever it is, the handler was not reached
            return NotStarted(error)
        if attempt.stopping is not None:
            return Raised(attempt.stopping, stop=True)
        attempt.performing = True
        try:
            return await self._perform(attempt, run, inputs)
        finally:
            attempt.performing = False

    async def _start(self, attempt: Attempt) -> tuple[Run[Any] | AsyncRun[Any], dict[str, Any]]:
        """What the handler is called with. Anything raised here is before its first line."""
        claimed, handler = attempt.claimed, attempt.handler
        draft, head, unfinished = await self._load(attempt)
        inputs, meta, _ = read_spec(claimed.spec, "the run")
        older = 0 < head.schema < handler.schema
        if older:
            draft = migrated(draft, head, inputs, handler)
        if INPUTS in draft.phases:
            inputs = decode(draft.phases[INPUTS], "inputs")
        if (wrong := handler.fits(inputs)) is not None:
            raise BadInputs(wrong)
        send = _Sender(self.wire, attempt)
        attempt.draft = draft
        attempt.saver = Saver(head, handler.schema, draft.cut(), Throttle(handler.throttle), self.clock, send)
        if older:
            attempt.saver.save_whole()
        attempt.saver.on_fenced = attempt.lose
        attempt.saver.on_progress = lambda: attempt.on_progress(attempt)
        current_parent.set(Parent(claimed.id, meta))
        facts = Facts(
            claimed.id,
            handler.kind,
            inputs,
            meta,
            attempt.number,
            claimed.token,
            self._resumed(attempt, head, unfinished),
        )
        attempt.facts = facts
        make = AsyncRun if handler.is_async else Run
        return make(facts, self.resources.get(handler.kind), draft, attempt), inputs

    async def _load(self, attempt: Attempt) -> tuple[Draft, CheckpointHead, list[Any]]:
        """The checkpoint: along with the claim, or page by page where it is large."""
        parts = attempt.claimed.checkpoint
        if parts is None:
            return Draft(), NO_CHECKPOINT, []
        if parts == "paged":
            plan = worker_plans.load(attempt.lease.keys, attempt.id, attempt.token)
            parts = await drive_async(self.wire, plan, give_up=lambda: attempt.stopping is not None)
            if parts == "fenced":
                attempt.stop("lost")
                raise Stopped("lost")
            if parts == "unreadable":
                raise Unreadable("the head of the checkpoint can't be read")
        draft, head, unfinished = loaded(parts)
        if head.schema > attempt.handler.schema:
            raise Unreadable(f"the checkpoint has schema {head.schema}, and the handler reads {attempt.handler.schema}")
        return draft, head, unfinished

    def _resumed(self, attempt: Attempt, head: CheckpointHead, unfinished: list[Any]) -> Resumed | None:
        cause = attempt.claimed.cause
        if not cause:
            return None
        worker, _, code = attempt.claimed.prev.partition(" ")
        age = self.clock.now() - head.updated / 1000 if head.updated else None
        return Resumed(cause, age, worker, code, tuple(unfinished), read_failure(attempt.claimed.killed))

    async def _perform(self, attempt: Attempt, run: Run[Any] | AsyncRun[Any], inputs: dict[str, Any]) -> Ending:
        self.health.record_started(attempt.handler.kind)
        try:
            if attempt.handler.is_async:
                return Returned(await attempt.handler.function(run, **inputs))
            context = contextvars.copy_context()
            call = lambda: context.run(_plainly, attempt.handler.function, run, inputs)  # noqa: E731  # a thread needs one callable
            ending: Ending = await attempt.loop.run_in_executor(self.threads, call)
            return _judged(ending)
        except BaseException as error:  # noqa: BLE001  # every way out of a handler is an ending
            return _judged(Raised(error))

    async def _absorb_cancels(self, task: asyncio.Task[Any]) -> None:
        """What was cancelled into the handler is over with it: recording its ending is not to be cancelled."""
        while task.cancelling():
            task.uncancel()
        try:
            await self.clock.asleep(0)
        except asyncio.CancelledError:
            return

    # -- finalise, report

    def _failures_in_a_row(self, attempt: Attempt) -> int:
        """Before this one; progress since the last one starts the count anew, but where each begins from the start."""
        if attempt.handler.retry.from_start:
            return attempt.counters.failures
        progressed = attempt.saver is not None and attempt.saver.progress_since(attempt.counters.failed)
        return 0 if progressed else attempt.counters.failures

    async def finalise(self, attempt: Attempt, outcome: Outcome) -> None:
        """Records the outcome. Its own errors are said, never swallowed: the run is then left to recovery."""
        if attempt.saver is not None:
            attempt.saver.close()
        try:
            word = await self._record(attempt, outcome)
        except (Unreachable, Unconfirmed) as error:
            logger.error("the ending of run %s could not be recorded: %s", attempt.id, error)
            attempt.unrecorded = True
            return
        except Exception:
            logger.exception("the ending of run %s could not be recorded", attempt.id)
            await self.give_back(attempt)
            return
        self._report(attempt, outcome, word)

    async def give_back(self, attempt: Attempt) -> None:
        """The last resort for a run whose ending can't be recorded: with back-off and a strike, so that it can't go on for ever."""
        try:
            await self._drive(attempt, release(attempt, stopping=False))
        except CoordinatorError as error:
            logger.error("run %s could not be given back: %s", attempt.id, error)
            attempt.unrecorded = True

    async def _record(self, attempt: Attempt, outcome: Outcome) -> str:
        if attempt.killed is not None and not isinstance(outcome, Complete | Nothing):
            # before any way back: from here on each of them ends the run as failed
            why = failure(attempt.killed)
            await self._drive(attempt, attempt_plans.kill(attempt.lease.keys, attempt.id, attempt.token, why))
        match outcome:
            case Complete(value):
                try:
                    result = b"" if value is None else kept(value, "the result", RESULT_LIMIT)
                except (NotPlain, TooLarge) as error:
                    return await self._record(attempt, Fail(error))
                return await self._drive(
                    attempt, attempt_plans.complete(attempt.lease.keys, attempt.id, attempt.token, result)
                )
            case Fail(error):
                text = failure(error)
                return await self._with_delta(
                    attempt, lambda d: attempt_plans.fail(attempt.lease.keys, attempt.id, attempt.token, text, d)
                )
            case TryAgain(error, delay, from_start):
                text = failure(error)
                return await self._with_delta(
                    attempt,
                    lambda d: attempt_plans.retry(
                        attempt.lease.keys,
                        attempt.id,
                        attempt.token,
                        delay=delay,
                        error=text,
                        from_start=from_start,
                        delta=d,
                    ),
                )
            case Release(stopping, warning):
                if warning:
                    logger.warning("%s: %s", attempt.handler, warning)
                return await self._with_delta(attempt, lambda d: release(attempt, stopping=stopping, delta=d))
            case Reject(error):
                proven = self.health.has_started(attempt.handler.kind)
                return await self._drive(
                    attempt,
                    attempt_plans.reject(
                        attempt.lease.keys,
                        attempt.id,
                        attempt.token,
                        proven=proven,
                        error=failure(error),
                        jitter=random.random(),
                    ),
                )
            case Nothing():
                return "lost"
            case _:
                assert_never(outcome)

    async def _with_delta(self, attempt: Attempt, plan: Callable[[bytes], Any]) -> str:
        """An ending that carries what is new; after a gap it carries everything."""
        if attempt.saver is None or attempt.draft is None:
            return await self._drive(attempt, plan(b""))
        unfinished = attempt.saver.unfinished(attempt.draft.messages)
        word = await self._drive(attempt, plan(attempt.saver.last_delta(unfinished)))
        if word == "gap":
            word = await self._drive(attempt, plan(attempt.saver.whole_delta(unfinished)))
        return word

    async def _drive(self, attempt: Attempt, plan: Any) -> str:
        """Repeated until it is answered, the token is lost, or the worker can wait no longer."""
        word: str = await drive_async(self.wire, plan, give_up=lambda: attempt.lost or self.give_up())
        return word

    def _report(self, attempt: Attempt, outcome: Outcome, word: str) -> None:
        if word in ("fenced", "lost"):
            logger.warning(
                "run %s is not this worker's any more: what this attempt did after its last checkpoint does not count",
                attempt.id,
            )
            return
        if word == "failed":
            logger.error("run %s failed: %s", attempt.id, attempt.killed)
            return
        match outcome:
            case Fail(error):
                logger.error("run %s failed: %s", attempt.id, _first_line(error))
            case TryAgain(error, delay):
                logger.warning("run %s is tried again in %.1f s: %s", attempt.id, delay, _first_line(error))
            case Reject(error):
                self._rejected(attempt, error)
                logger.error("run %s could not be started and is %s: %s", attempt.id, word, _first_line(error))
            case Release() if word == "cancelled":
                logger.info("run %s is cancelled, as was asked for", attempt.id)
            case Release():
                drains = attempt.stopping is not None and attempt.stopping.why == "drain"
                logger.info("run %s is handed back (%s)%s", attempt.id, word, ": its worker drains" if drains else "")
            case _:
                logger.debug("run %s %s", attempt.id, word)

    def _rejected(self, attempt: Attempt, error: BaseException) -> None:
        kind = attempt.handler.kind
        if self.health.record_rejected(kind, attempt.id, self.clock.monotonic()):
            logger.critical(
                "kind %r is not claimed any more for now: no run of it could be started here; the last: %s",
                kind,
                _first_line(error),
            )
            self.refused(kind)


class BadInputs(CoordinatorError):
    """The inputs don't fit the handler's signature."""


def release(attempt: Attempt, *, stopping: bool, delta: bytes = b"") -> Any:
    mode = "stopping" if stopping else "unasked"
    return attempt_plans.release(
        attempt.lease.keys, attempt.id, attempt.token, mode=mode, jitter=random.random(), delta=delta
    )


@dataclass(frozen=True, slots=True)
class _Sender:
    """Sends one save. Not repeated here: the saver comes again with what is newest then."""

    wire: AsyncWire
    attempt: Attempt

    async def __call__(self, delta: attempt_plans.Delta) -> tuple[str, int]:
        plan = attempt_plans.checkpoint(self.attempt.lease.keys, self.attempt.id, self.attempt.token, delta)
        return await drive_async(self.wire, plan, give_up=lambda: True)


def _plainly(function: Callable[..., Any], run: Any, inputs: dict[str, Any]) -> Ending:
    """A plain handler in its thread. Nothing escapes: a StopIteration or SystemExit would end up in the event loop."""
    try:
        return Returned(function(run, **inputs))
    except BaseException as error:  # noqa: BLE001  # every way out of a handler is an ending
        return Raised(error)


def _judged(ending: Ending) -> Ending:
    if isinstance(ending, Raised):
        stop = _is_stop(ending.error) or _is_cancelled(ending.error)
        return Raised(ending.error, stop=stop)
    return ending


def _is_cancelled(error: BaseException) -> bool:
    """Somebody cancelled the attempt's own task, as an event loop does with all that it has when it is closed: no failure."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _is_stop(error: BaseException) -> bool:
    """A stop comes out of a TaskGroup as a group. A run that may have no children any more was cancelled, told or not."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_stop(inner) for inner in error.exceptions)
    if isinstance(error, TreeCancelled):
        around = current_parent.get()
        return around is not None and around.run == error.parent
    return isinstance(error, Stopped)


def failure(error: BaseException) -> bytes:
    """An error as text, bounded. Whatever a handler raises can be kept: else its run would never end."""
    trace = "".join(traceback.format_exception(error))
    return encode([type(error).__name__, _message(error)[:10_000], _utf8(trace)[-20_000:]], "error")


def _message(error: BaseException) -> str:
    try:
        return _utf8(str(error))
    except Exception:  # noqa: BLE001  # its own __str__ raised
        return "(its text can't be had: str() of it raised)"


def _utf8(text: str) -> str:
    """Names of files may hold what is no text."""
    return text.encode(errors="backslashreplace").decode()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_message(error).partition(chr(10))[0][:300]}"


def kind_of(route: str) -> str:
    """Also of a route that can't be read: nobody knows such a kind."""
    return route.partition(":")[2].rpartition("@")[0]
