"""Record the outcome of an attempt on the server, and log it."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, assert_never

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError, NotConfigured, NotPlain, TooLarge, Unconfirmed, Unreachable
from coordinator.model.outcome import Complete, Fail, Nothing, Outcome, Reject, Release, Suspend, TryAgain
from coordinator.model.policies.retry import asked_delay
from coordinator.store.keys import Keys
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.script import Request
from coordinator.store.transport.wire import AsyncWire, drive_async
from workers.attempt.attempt import Attempt
from workers.attempt.endings import measure_ending, tell_middleware
from workers.attempt.failure import failure, first_line, retry_later
from workers.attempt.kind_health import KindHealth
from workers.attempt.saver import packed_note
from workers.handlers.checkpoint.draft import RESULT_LIMIT
from workers.handlers.checkpoint.messages import encode_plain
from workers.handlers.operations.waits import BadSignal, WaitTimeout
from workers.metrics.worker_metrics import WorkerMetrics

logger = logging.getLogger(__name__)

REFUSED_PAUSE = 1.0  # seconds before an outcome is sent again to a server that refused it

RELEASED = {  # the server's answers to a release, for the log
    "ok": "is released",
    "delayed": "is released and continues after a delay",
    "dead": "is dead: it was lost three times without progress",
}


SUSPENDED = {  # the server's answers to a suspend, for the log
    "waiting": "waits without a slot",
    "ok": "is queued: its wait is over",
    "delayed": "is queued after a delay: its wait is over, but the run made no progress after its last wait",
}
# The causes of a resumption that say that the handler of the run has started before.
STARTED_BEFORE = ("release", "recover", "retry", "wake")


@dataclass(frozen=True, slots=True)
class Recorder:
    """Record the outcomes of a process's attempts.

    Attributes:
        wire: The connection to the server.
        clock: The time source.
        health: Counts the runs that could not be started.
        give_up: Returns True when the worker cannot wait for the server any longer.
        on_refused: The function that is called with a kind if the code of this process probably can't start its runs.
        metrics: Counts the outcomes; None to count nothing.
    """

    wire: AsyncWire
    clock: Clock
    health: KindHealth
    give_up: Callable[[], bool]
    on_refused: Callable[[str], None]
    metrics: WorkerMetrics | None = None

    async def record(self, attempt: Attempt, outcome: Outcome) -> bool:
        """Record an outcome, and repeat the request until the server answers.

        Errors are logged and not raised. If the outcome itself cannot be recorded, the run is released instead.

        Returns:
            False if the server did not get the outcome. The server then still counts the run as owned by this worker.
        """
        if attempt.saver is not None:
            attempt.saver.close()
            if isinstance(outcome, Fail):
                for error in _errors_of_waits(outcome.error):
                    attempt.saver.forget_wait(error.field)
        outcome, result = _with_result(attempt, outcome)
        try:
            # Most attempts have no unsaved note, spending or output, and a call that does nothing costs time, too.
            if attempt.unsaved_note is not None:
                await self._send_last_note(attempt, outcome)
            if attempt.spend is not attempt.spend_stored:
                await self._send_last_spend(attempt, outcome)
            if attempt.outbox is not None:
                await self._check_output(attempt)
            if isinstance(outcome, Complete) and attempt.handler.keep_messages:
                await self._save_messages(attempt)
            answer = await self._record(attempt, outcome, result)
        except (Unreachable, Unconfirmed) as error:
            logger.error("outcome of run %s could not be recorded: %s", attempt.id, error)
            return False
        except Exception:
            logger.exception("outcome of run %s could not be recorded; releasing the run", attempt.id)
            return await self.release_with_strike(attempt)
        finally:
            if attempt.outbox is not None:
                attempt.outbox.close()
        if (
            answer == "ok" and type(outcome) is Complete
        ):  # most attempts end in this way: no other outcome is looked for
            logger.debug("run %s %s", attempt.id, answer)
            if self.metrics is not None:
                self.metrics.attempt_completed(attempt)
        else:
            self._log(attempt, outcome, answer)
            if self.metrics is not None:
                measure_ending(self.metrics, attempt, outcome, answer, self.clock.monotonic())
        if attempt.middleware.sees_endings:
            tell_middleware(attempt, outcome, answer, self.clock.monotonic())
        return True

    async def release_with_strike(self, attempt: Attempt) -> bool:
        """Release a run whose outcome cannot be recorded.

        The release delays the run, and counts as a strike unless the run made progress. A run whose outcome can never be recorded
        is dead after some attempts. The attempt is logged and counted as released, or as the end of its run.

        Returns:
            False if the server did not get the release.
        """
        outcome = Release(stopping=False)
        try:
            answer = await self._drive(attempt, lambda: _release(attempt, stopping=False))
        except CoordinatorError as error:
            logger.error("run %s could not be released: %s", attempt.id, error)
            return False
        self._log(attempt, outcome, answer)
        if self.metrics is not None:
            measure_ending(self.metrics, attempt, outcome, answer, self.clock.monotonic())
        if attempt.middleware.sees_endings:
            tell_middleware(attempt, outcome, answer, self.clock.monotonic())
        return True

    async def _send_last_note(self, attempt: Attempt, outcome: Outcome) -> None:
        """Send the newest note of the handler, if the server does not have it yet. Errors are logged and not raised."""
        note = attempt.unsaved_note
        if note is None or isinstance(outcome, Nothing):
            return
        owner, packed = (attempt.lease.keys, attempt.id, attempt.token), packed_note(note)
        try:
            await self._drive(attempt, lambda: attempt_plans.note(*owner, packed))
        except (Unreachable, Unconfirmed):
            raise
        except CoordinatorError as error:
            logger.warning("last note of run %s could not be stored: %s", attempt.id, error)

    async def _save_messages(self, attempt: Attempt) -> None:
        """Save the transcript of a run that completes, so that `handle.messages()` can read all of it.

        If the transcript can't be saved, for example because the server's memory is full, the messages up to the last save are
        kept.
        """
        saver, draft = attempt.saver, attempt.draft
        if saver is None or draft is None:
            return
        owner = (attempt.lease.keys, attempt.id, attempt.token)
        try:
            saver.offer(draft.cut())
            for delta in (saver.last_delta, saver.whole_delta):
                changes = delta()
                if not changes or await self._drive(attempt, lambda: _save(*owner, changes)) != "gap":  # noqa: B023
                    return
        except (Unreachable, Unconfirmed):
            raise
        except CoordinatorError as error:
            logger.warning("last messages of run %s are not kept: %s", attempt.id, error)

    async def _check_output(self, attempt: Attempt) -> None:
        """Send the events that are not stored yet, but for the last ones, which the request with the outcome carries.

        Drop them if a live process runs an older version that does not know outputs.

        Raises:
            Unreachable: If the server has not answered when the worker cannot wait any longer.
        """
        outbox, emitter = attempt.outbox, attempt.emitter
        if outbox is None or emitter is None or not outbox.waiting:
            return

        def give_up() -> bool:
            return attempt.lost or self.give_up()

        if await emitter.may_carry(attempt, give_up):
            await emitter.send_ahead(attempt, give_up)
        else:
            outbox.close()

    async def _send_last_spend(self, attempt: Attempt, outcome: Outcome) -> None:
        """Send the total that the attempt has spent, if the server does not have it yet. Errors are logged and not raised."""
        if attempt.spend == attempt.spend_stored or isinstance(outcome, Nothing):
            return
        owner, amount = (attempt.lease.keys, attempt.id, attempt.token), attempt.spend
        try:
            await self._drive(attempt, lambda: attempt_plans.spend(*owner, amount))
        except (Unreachable, Unconfirmed):
            raise
        except CoordinatorError as error:
            logger.warning("spending of run %s could not be stored: %s", attempt.id, error)

    async def _record(self, attempt: Attempt, outcome: Outcome, result: bytes) -> str:
        owner = (attempt.lease.keys, attempt.id, attempt.token)
        if attempt.killed is not None and not isinstance(outcome, Complete | Nothing):
            # The kill is written before anything can requeue the run: from then on the run ends as failed.
            killed = failure(attempt.killed)
            await self._drive(attempt, lambda: attempt_plans.kill(*owner, killed))
        match outcome:
            case Complete():
                output = None if attempt.outbox is None else attempt.outbox.take()
                events = b"" if output is None else output.wire()
                keep = attempt.handler.keep_messages
                return await self._drive(
                    attempt, lambda: attempt_plans.complete(*owner, result, output=events, keep=keep)
                )
            case Fail(error):
                text = failure(error)
                return await self._with_delta(attempt, lambda delta: attempt_plans.fail(*owner, text, delta))
            case TryAgain(error, delay, from_start):
                asked = asked_delay(error) is not None
                text = retry_later(error) if asked else failure(error)
                return await self._with_delta(
                    attempt,
                    lambda delta: attempt_plans.retry(
                        *owner, delay=delay, error=text, from_start=from_start, asked=asked, delta=delta
                    ),
                )
            case Release(stopping, warning):
                if warning:
                    logger.warning("%s: %s", attempt.handler, warning)
                return await self._with_delta(attempt, lambda delta: _release(attempt, stopping=stopping, delta=delta))
            case Suspend(warning):
                if warning:
                    logger.warning("%s: %s", attempt.handler, warning)
                condition, jitter = attempt.condition, random.random()
                assert condition is not None
                return await self._with_delta(
                    attempt,
                    lambda delta: attempt_plans.suspend(*owner, condition=condition, jitter=jitter, delta=delta),
                )
            case Reject(error):
                proven, text, jitter = self.health.has_started(attempt.handler.kind), failure(error), random.random()
                return await self._drive(
                    attempt, lambda: attempt_plans.reject(*owner, proven=proven, error=text, jitter=jitter)
                )
            case Nothing():
                return "lost"
            case _:
                assert_never(outcome)

    async def _with_delta(self, attempt: Attempt, plan: Callable[[bytes], Any]) -> str:
        """Send the outcome of an attempt together with the newest changes to the checkpoint.

        The server answers `gap` if it lacks the checkpoint that the changes are based on. Then send the whole checkpoint.

        Returns:
            The server's answer.
        """
        if attempt.saver is None or attempt.draft is None:
            return await self._drive(attempt, lambda: plan(b""))
        unfinished = attempt.saver.unfinished(attempt.draft.messages)
        newest = attempt.saver.last_delta(unfinished)
        answer = await self._drive(attempt, lambda: plan(newest))
        if answer == "gap":
            whole = attempt.saver.whole_delta(unfinished)
            answer = await self._drive(attempt, lambda: plan(whole))
        return answer

    async def _drive(self, attempt: Attempt, make_plan: Callable[[], Any]) -> str:
        """Repeat a request until the server answers, and return the answer.

        A server that refuses the user's rights or credentials is tried again too, as after an outage: while passwords are rotated
        or ACL rules are loaded, a right may be missing for a moment, and the result must not be lost because of that.

        Raises:
            Unreachable: If the server has not answered, or still refuses, when the worker cannot wait any longer.
        """

        def give_up() -> bool:
            return attempt.lost or self.give_up()

        refused = False
        while True:
            try:
                answer: str = await drive_async(self.wire, make_plan(), give_up=give_up)
                return answer
            except NotConfigured as error:
                if give_up():
                    raise Unreachable(str(error)) from error
                if not refused:
                    logger.error("outcome of run %s is refused and will be sent again: %s", attempt.id, error)
                refused = True
                await self.clock.asleep(REFUSED_PAUSE)

    # -- logging

    def _log(self, attempt: Attempt, outcome: Outcome, answer: str) -> None:
        if answer in ("fenced", "lost"):
            logger.warning(
                "run %s belongs to another owner: the work of this attempt after its last checkpoint does not count",
                attempt.id,
            )
            return
        if answer == "cancelled":
            logger.info("run %s is cancelled", attempt.id)
            return
        if answer == "failed":
            logger.error("run %s failed: %s", attempt.id, attempt.killed, exc_info=attempt.killed)
            return
        match outcome:
            case Fail(error):
                logger.error("run %s failed: %s", attempt.id, first_line(error), exc_info=error)
            case TryAgain(error, delay):
                asked = asked_delay(error) is not None  # The handler asked for the retry, so this is not a failure.
                level, trace = (logging.INFO, None) if asked else (logging.WARNING, error)
                logger.log(
                    level, "run %s is retried in %.1f s: %s", attempt.id, delay, first_line(error), exc_info=trace
                )
            case Reject(error):
                self._count_rejected(attempt, error)
                trace = error if error.__traceback__ is not None else None
                logger.error(
                    "run %s could not be started and is %s: %s", attempt.id, answer, first_line(error), exc_info=trace
                )
            case Release():
                draining = attempt.stopping is not None and attempt.stopping.why == "drain"
                reason = ": the worker is shutting down" if draining else ""
                logger.info("run %s %s%s", attempt.id, RELEASED.get(answer, answer), reason)
            case Suspend():
                logger.info("run %s %s", attempt.id, SUSPENDED.get(answer, answer))
            case _:
                logger.debug("run %s %s", attempt.id, answer)

    def _count_rejected(self, attempt: Attempt, error: BaseException) -> None:
        kind = attempt.handler.kind
        if self.health.record_rejected(kind, attempt.id, self.clock.monotonic()):
            logger.critical(
                "kind %r is suspended: this process could not start any of its runs; the last error: %s",
                kind,
                first_line(error),
            )
            self.on_refused(kind)
        elif not self.health.has_started(kind) and attempt.claimed.cause.split(" ")[0] in STARTED_BEFORE:
            # Other code has started this run, so the code of this process is to blame, and not the inputs of the run.
            self.on_refused(kind)


def _errors_of_waits(error: BaseException) -> list[WaitTimeout | BadSignal]:
    """Return each error of a `run.receive` among the error, its causes and contexts, and the members of exception groups.

    A BadSignal that is only the context of another error is left out: the handler has caught it, and may have received the next
    signal since.
    """
    found, seen, open_errors = list[WaitTimeout | BadSignal](), set[int](), [(error, False)]
    while open_errors:
        one, was_caught = open_errors.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, WaitTimeout) or (isinstance(one, BadSignal) and not was_caught):
            found.append(one)
        if one.__cause__ is not None:
            open_errors.append((one.__cause__, was_caught))
        elif one.__context__ is not None and not one.__suppress_context__:
            open_errors.append((one.__context__, True))
        open_errors += (
            [(member, was_caught) for member in one.exceptions] if isinstance(one, BaseExceptionGroup) else []
        )
    return found


def _with_result(attempt: Attempt, outcome: Outcome) -> tuple[Outcome, bytes]:
    """Return the outcome and the encoded result of the handler.

    If the result cannot be stored, the outcome is a failure of the run, and the result is empty.
    """
    if not isinstance(outcome, Complete) or outcome.value is None:
        return outcome, b""
    try:
        plain = attempt.handler.plain_result(outcome.value)
        return outcome, b"" if plain is None else encode_plain(plain, "the result", RESULT_LIMIT)
    except (NotPlain, TooLarge) as error:
        return Fail(error), b""


def _save(keys: Keys, id: str, token: str, changes: bytes) -> Generator[Request, Any, str]:
    """Save changes of a checkpoint, and return the answer word of checkpoint.lua."""
    answer, _ = yield from attempt_plans.checkpoint(keys, id, token, changes)
    return answer


def _release(attempt: Attempt, *, stopping: bool, delta: bytes = b"") -> Any:
    mode = "stopping" if stopping else "unasked"
    return attempt_plans.release(
        attempt.lease.keys, attempt.id, attempt.token, mode=mode, jitter=random.random(), delta=delta
    )
