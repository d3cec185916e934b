"""The critic: watches runs that have deadlines, asks the escalator at the soft one, and kills at the others.

`DeadlineTracker` decides without a clock; `Critic` acts. A kill is written on the run before anything else comes of it, so it holds
whatever becomes of this process. An escalator may raise or hang as it likes: the watch goes on beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any, Literal

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.logs import about
from coordinator.model.deadline import (
    Deadline,
    DeadlineExceeded,
    Escalator,
    Extend,
    Kill,
    Leave,
    Spent,
    Verdict,
    Watched,
    extend_once,
)
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.transport.wire import AsyncWire, drive_async
from coordinator.views.run_view import phase_label
from workers.attempt.attempt import Attempt
from workers.handlers.draft import INPUTS

logger = logging.getLogger(__name__)
LOOK = 5.0  # the watch looks again after this time at the latest: a doubt about the lease must not be missed
AGAIN = 30.0  # after an escalator that gave no verdict it is asked again so much later, or after the soft time if that is less
SLOW = 60.0  # an escalator that takes longer than this is said to hang
TAIL = 20  # messages that an escalator is shown
LONGEST_REASON = 1000


class DeadlineTracker:
    """What is due for one attempt, and when. Times are the clock's, given by the caller."""

    def __init__(self, deadline: Deadline, spent: Spent, now: float) -> None:
        self.deadline = deadline
        self.extensions, self.extended = spent.extensions, spent.extended
        self._begun, self._progressed = now - spent.used, now - spent.idle
        self._asking = False
        self._soft = None if deadline.soft is None else self._begun + deadline.soft + spent.extended

    def age(self, now: float) -> float:
        return now - self._begun

    def idle(self, now: float) -> float:
        return now - self._progressed

    def progressed(self, now: float) -> None:
        self._progressed = now

    def asked(self) -> None:
        self._asking = True

    def answered(self, verdict: Verdict | None, now: float) -> None:
        """What the escalator said; None where it gave no verdict."""
        self._asking = False
        match verdict:
            case Extend(seconds):
                self._soft = now + seconds
            case None:
                self._soft = now + min(AGAIN, self.deadline.soft or AGAIN)
            case _:
                self._soft = None

    def extension(self, seconds: float, now: float) -> float:
        """By how much this moves the soft deadline of the run, counted from where it was: that is what is kept."""
        return max(0.0, self.age(now) + seconds - (self.deadline.soft or 0.0) - self.extended)

    def due(self, now: float) -> Kill | Literal["ask"] | float:
        """A kill, a question to the escalator, or the seconds until there is something."""
        hard, progress = self.deadline.hard, self.deadline.progress
        if hard is not None and self.age(now) >= hard:
            return Kill(f"its hard deadline of {hard:g} s has passed")
        if progress is not None and self.idle(now) >= progress:
            return Kill(f"it made no progress for {progress:g} s")
        if self._soft is not None and not self._asking and now >= self._soft:
            return "ask"
        moments = [
            None if hard is None else self._begun + hard,
            None if progress is None else self._progressed + progress,
            None if self._asking else self._soft,
        ]
        return min((moment - now for moment in moments if moment is not None), default=LOOK)


class Critic:
    """Watches the attempts of a process; `kill` is what the worker does with one whose time is over."""

    def __init__(self, wire: AsyncWire, clock: Clock, kill: Callable[[Attempt, DeadlineExceeded], None]) -> None:
        self._wire, self._clock, self._kill = wire, clock, kill
        self._watches: dict[tuple[str, str], DeadlineTracker] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def watch(self, attempt: Attempt) -> None:
        """Begins to watch, where there is something to. A run whose time is over is killed before the handler's first line."""
        deadline = attempt.handler.deadline
        if not deadline.watched:
            return
        watch = DeadlineTracker(deadline, Spent.parse(attempt.claimed.spent), self._clock.monotonic())
        verdict = watch.due(self._clock.monotonic())
        if isinstance(verdict, Kill):
            self._end(attempt, verdict)
            return
        self._watches[attempt.key] = watch
        self._tasks[attempt.key] = asyncio.get_running_loop().create_task(self._watch(attempt, watch))

    def progressed(self, attempt: Attempt) -> None:
        if (watch := self._watches.get(attempt.key)) is not None:
            watch.progressed(self._clock.monotonic())

    def forget(self, attempt: Attempt) -> None:
        """The attempt is over."""
        self._watches.pop(attempt.key, None)
        if (task := self._tasks.pop(attempt.key, None)) is not None:
            task.cancel()

    def _end(self, attempt: Attempt, verdict: Kill) -> None:
        if attempt.may_be_killed:  # it may have been cancelled while its escalator thought
            self._kill(attempt, DeadlineExceeded(f"killed by its critic: {str(verdict.reason)[:LONGEST_REASON]}"))

    async def _watch(self, attempt: Attempt, watch: DeadlineTracker) -> None:
        about.set({"run": attempt.id, "kind": attempt.handler.kind, "attempt": attempt.number})
        asking: asyncio.Task[Verdict | None] | None = None
        try:
            while not attempt.ended and attempt.may_be_killed:
                now = self._clock.monotonic()
                if attempt.lease.in_doubt:  # nothing can be saved, and so no progress be seen
                    watch.progressed(now)
                match watch.due(now):
                    case Kill() as verdict:
                        return self._end(attempt, verdict)
                    case "ask":
                        watch.asked()
                        asking = asyncio.get_running_loop().create_task(self._ask(attempt, watch))
                    case seconds if asking is None:
                        await self._clock.asleep(min(seconds, LOOK))
                    case seconds:
                        await asyncio.wait({asking}, timeout=min(seconds, LOOK))
                if asking is not None and asking.done():
                    answer, asking = _outcome(asking), None
                    watch.answered(answer, self._clock.monotonic())
                    if isinstance(answer, Kill):
                        return self._end(attempt, answer)
        finally:
            if asking is not None:
                asking.cancel()

    # -- the escalator

    async def _ask(self, attempt: Attempt, watch: DeadlineTracker) -> Verdict | None:
        """Its verdict, written down where it is an extension. None where there is none."""
        escalator = watch.deadline.escalator or extend_once
        asked = asyncio.get_running_loop().create_task(_verdict(escalator, self._shown(attempt, watch)))
        try:
            if not (await asyncio.wait({asked}, timeout=SLOW))[0]:
                logger.error("the escalator of run %s has not answered for %.0f s; the watch goes on", attempt.id, SLOW)
                await asyncio.wait({asked})
            verdict = asked.result()
        finally:
            asked.cancel()
        if isinstance(verdict, BaseException):
            logger.error(
                "the escalator of run %s gave no verdict; it is asked again later", attempt.id, exc_info=verdict
            )
            return None
        logger.info("the escalator of run %s says: %r", attempt.id, verdict)
        if isinstance(verdict, Extend):
            await self._extend(attempt, watch, verdict.seconds)
        return verdict

    async def _extend(self, attempt: Attempt, watch: DeadlineTracker, seconds: float) -> None:
        """Counts when it is written: one that is not remembered would be given again after a crash."""
        more = watch.extension(seconds, self._clock.monotonic())
        watch.extensions, watch.extended = watch.extensions + 1, watch.extended + more
        plan = attempt_plans.extend(
            attempt.lease.keys, attempt.id, attempt.token, number=watch.extensions, seconds=more
        )
        try:
            await drive_async(self._wire, plan, give_up=lambda: attempt.ended or attempt.lost)
        except CoordinatorError as error:
            logger.warning("the extension of run %s could not be written: %s", attempt.id, error)

    def _shown(self, attempt: Attempt, watch: DeadlineTracker) -> Watched:
        now, facts, draft = self._clock.monotonic(), attempt.facts, attempt.draft
        return Watched(
            id=attempt.id,
            kind=attempt.handler.kind,
            inputs=facts.inputs if facts else {},
            meta=facts.meta if facts else {},
            attempt=attempt.number,
            age=watch.age(now),
            idle=watch.idle(now),
            iteration=draft.iteration if draft else 0,
            phases=tuple(phase_label(field) for field in draft.phases if field != INPUTS) if draft else (),
            messages=tuple(draft.messages[-TAIL:]) if draft else (),
            note=attempt.note,
            extensions=watch.extensions,
            extended=watch.extended,
            deadline=watch.deadline,
        )


def _outcome(asking: asyncio.Task[Verdict | None]) -> Verdict | None:
    """Whatever went wrong with asking, the watch goes on."""
    if asking.cancelled():
        return None
    if (error := asking.exception()) is not None:
        logger.error("an escalator could not be asked", exc_info=error)
        return None
    return asking.result()


async def _verdict(escalator: Escalator, run: Watched) -> Verdict | BaseException:
    """What the escalator says, or what came instead. A SystemExit must not get as far as the event loop, which it would end."""
    try:
        answer: Any = escalator(run) if inspect.iscoroutinefunction(escalator) else await _in_a_thread(escalator, run)
        if inspect.isawaitable(answer):
            answer = await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return error
    except BaseException as error:  # noqa: BLE001  # whatever a user's function raises
        return error
    if isinstance(answer, Extend | Kill | Leave):
        return answer
    return TypeError(
        f"the escalator answered {answer!r:.200}, which is neither Extend(seconds) nor Kill(reason) nor Leave()"
    )


async def _in_a_thread(escalator: Escalator, run: Watched) -> Any:
    """In a thread of its own: the handlers' may all be taken, and one that hangs must not keep a place, nor the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((answer, error))

    def call() -> None:
        answer, error = None, None
        try:
            answer = escalator(run)
        except BaseException as raised:  # noqa: BLE001  # handed on
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, answer, error)

    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(call), name="escalator", daemon=True).start()
    answer, error = await done
    if error is not None:
        raise error
    return answer
