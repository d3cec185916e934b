"""The critic watches runs that have deadlines.

At the soft deadline the critic asks the escalator what to do. At every other deadline it kills the run.

A kill is first written to the stored run, so that the kill stays in force if this process crashes. An escalator may raise or hang:
the critic keeps watching the other deadlines meanwhile.
"""

from __future__ import annotations

import asyncio
import logging

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.logs import about
from coordinator.model.policies.deadline import DeadlineExceeded, Extend, Kill, Spent, Verdict, Watched, extend_once
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from coordinator.views.run_view import phase_label
from workers.attempt.attempt import Attempt
from workers.attempt.deadlines.deadline_tracker import CHECK_SECONDS, DeadlineTracker
from workers.attempt.deadlines.escalation import ask_escalator
from workers.handlers.checkpoint.draft import INPUTS

logger = logging.getLogger(__name__)
SLOW_ESCALATOR_SECONDS = 60.0  # an escalator that takes longer than this is logged
SHOWN_MESSAGES = 20  # an escalator sees this number of messages from the end of the transcript
REASON_CHARACTERS = 1000


class Critic:
    """Watch the deadlines of a process's attempts.

    An attempt whose time is over is reported to its observer.

    Args:
        wire: The connection to the server.
        clock: The time source.
    """

    def __init__(self, wire: AsyncWire, clock: Clock) -> None:
        self._wire, self._clock = wire, clock
        self._trackers: dict[tuple[str, str], DeadlineTracker] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def watch(self, attempt: Attempt) -> None:
        """Watch an attempt if its kind has deadlines. If a deadline has passed already, kill the run before its handler starts."""
        deadline = attempt.handler.deadline
        if not deadline.watched:
            return
        tracker = DeadlineTracker(deadline, Spent.parse(attempt.claimed.spent), self._clock.monotonic())
        verdict = tracker.due(self._clock.monotonic())
        if isinstance(verdict, Kill):
            self._kill(attempt, verdict)
            return
        self._trackers[attempt.key] = tracker
        self._tasks[attempt.key] = asyncio.get_running_loop().create_task(self._watch(attempt, tracker))

    def progressed(self, attempt: Attempt) -> None:
        """Record that an attempt has made progress."""
        if (tracker := self._trackers.get(attempt.key)) is not None:
            tracker.progressed(self._clock.monotonic())

    def forget(self, attempt: Attempt) -> None:
        """Stop watching an attempt that has ended."""
        self._trackers.pop(attempt.key, None)
        if (task := self._tasks.pop(attempt.key, None)) is not None:
            task.cancel()

    def _kill(self, attempt: Attempt, verdict: Kill) -> None:
        if attempt.may_be_killed:  # the attempt may have been cancelled while its escalator was deciding
            reason = str(verdict.reason)[:REASON_CHARACTERS]
            attempt.observer.on_deadline(attempt, DeadlineExceeded(f"killed by its critic: {reason}"))

    async def _watch(self, attempt: Attempt, tracker: DeadlineTracker) -> None:
        about.set({"run": attempt.id, "kind": attempt.handler.kind, "attempt": attempt.number})
        asking: asyncio.Task[Verdict | None] | None = None
        try:
            while not attempt.decided and attempt.may_be_killed:
                now = self._clock.monotonic()
                if attempt.lease.in_doubt:  # nothing can be saved now, so the run cannot show progress
                    tracker.progressed(now)
                match tracker.due(now):
                    case Kill() as verdict:
                        return self._kill(attempt, verdict)
                    case "ask":
                        tracker.asked()
                        asking = asyncio.get_running_loop().create_task(self._ask(attempt, tracker))
                    case seconds if asking is None:
                        await self._clock.asleep(min(seconds, CHECK_SECONDS))
                    case seconds:
                        await asyncio.wait({asking}, timeout=min(seconds, CHECK_SECONDS))
                if asking is not None and asking.done():
                    answer, asking = _verdict_of(asking), None
                    tracker.answered(answer, self._clock.monotonic())
                    if isinstance(answer, Kill):
                        return self._kill(attempt, answer)
        finally:
            if asking is not None:
                asking.cancel()

    # -- the escalator

    async def _ask(self, attempt: Attempt, tracker: DeadlineTracker) -> Verdict | None:
        """Ask the escalator of a run for its verdict. If the verdict extends the deadline, save the extension with the run.

        Returns:
            The verdict, or None if the escalator gave none.
        """
        escalator = tracker.deadline.escalator or extend_once
        asked = asyncio.get_running_loop().create_task(ask_escalator(escalator, self._describe(attempt, tracker)))
        try:
            if not (await asyncio.wait({asked}, timeout=SLOW_ESCALATOR_SECONDS))[0]:
                logger.error(
                    "escalator of run %s has not answered for %.0f s; the other deadlines are still watched",
                    attempt.id, SLOW_ESCALATOR_SECONDS,
                )  # fmt: skip
                await asyncio.wait({asked})
            verdict = asked.result()
        finally:
            asked.cancel()
        if isinstance(verdict, BaseException):
            logger.error("escalator of run %s gave no verdict and is asked again later", attempt.id, exc_info=verdict)
            return None
        logger.info("escalator of run %s decided: %r", attempt.id, verdict)
        if isinstance(verdict, Extend):
            await self._extend(attempt, tracker, verdict.seconds)
        return verdict

    async def _extend(self, attempt: Attempt, tracker: DeadlineTracker, seconds: float) -> None:
        """Store an extension with the run. Otherwise the run would get the same extension again after a crash.

        An error of the server is logged and not raised.
        """
        more = tracker.extension(seconds, self._clock.monotonic())
        tracker.extensions, tracker.extended = tracker.extensions + 1, tracker.extended + more
        plan = attempt_plans.extend(
            attempt.lease.keys, attempt.id, attempt.token, number=tracker.extensions, seconds=more
        )
        try:
            await drive_async(self._wire, plan, give_up=lambda: attempt.decided or attempt.lost)
        except CoordinatorError as error:
            logger.warning("extension of run %s could not be saved: %s", attempt.id, error)

    def _describe(self, attempt: Attempt, tracker: DeadlineTracker) -> Watched:
        now, facts, draft = self._clock.monotonic(), attempt.facts, attempt.draft
        return Watched(
            id=attempt.id,
            kind=attempt.handler.kind,
            inputs=facts.inputs if facts else {},
            meta=facts.meta if facts else {},
            attempt=attempt.number,
            age=tracker.age(now),
            idle=tracker.idle(now),
            iteration=draft.iteration if draft else 0,
            phases=tuple(phase_label(field) for field in draft.phases if field != INPUTS) if draft else (),
            messages=tuple(draft.messages[-SHOWN_MESSAGES:]) if draft else (),
            note=attempt.note,
            extensions=tracker.extensions,
            extended=tracker.extended,
            deadline=tracker.deadline,
        )


def _verdict_of(asking: asyncio.Task[Verdict | None]) -> Verdict | None:
    """Return the verdict of a finished task, or None after an error, which is logged so that the critic can continue."""
    if asking.cancelled():
        return None
    if (error := asking.exception()) is not None:
        logger.error("escalator could not be asked", exc_info=error)
        return None
    return asking.result()
