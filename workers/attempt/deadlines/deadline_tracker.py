"""Decide when the deadlines of an attempt require an action. The decisions are pure: the caller passes in the time."""

from __future__ import annotations

from typing import Literal

from coordinator.model.policies.deadline import Deadline, Extend, Kill, Spent, Verdict

CHECK_SECONDS = 5.0  # the critic checks at least this often, so that it does not miss a lease in doubt
# An escalator without a verdict is asked again after this time, or the soft time if that is shorter.
ASK_AGAIN_SECONDS = 30.0


class DeadlineTracker:
    """The deadlines of one run, during one attempt.

    Args:
        deadline: The deadlines of the run's kind.
        spent: The time that earlier attempts have used, and the extensions that the run has got.
        now: The time at which this attempt begins.
    """

    def __init__(self, deadline: Deadline, spent: Spent, now: float) -> None:
        self.deadline = deadline
        self.extensions, self.extended = spent.extensions, spent.extended
        self._begun, self._progressed = now - spent.used, now - spent.idle
        self._asking = False
        self._soft = None if deadline.soft is None else self._begun + deadline.soft + spent.extended

    def age(self, now: float) -> float:
        """Return the seconds that the run has used in all its attempts."""
        return now - self._begun

    def idle(self, now: float) -> float:
        """Return the seconds that the run has used since its last progress."""
        return now - self._progressed

    def progressed(self, now: float) -> None:
        """Record that the run has made progress."""
        self._progressed = now

    def asked(self) -> None:
        """Record that the escalator was asked. Until it answers, `due` does not return "ask"."""
        self._asking = True

    def answered(self, verdict: Verdict | None, now: float) -> None:
        """Record the verdict of the escalator, or None if the escalator gave no verdict."""
        self._asking = False
        match verdict:
            case Extend(seconds):
                self._soft = now + seconds
            case None:
                self._soft = now + min(ASK_AGAIN_SECONDS, self.deadline.soft or ASK_AGAIN_SECONDS)
            case _:
                self._soft = None

    def extension(self, seconds: float, now: float) -> float:
        """Return the seconds by which an extension that starts now moves the soft deadline. The run stores this number."""
        return max(0.0, self.age(now) + seconds - (self.deadline.soft or 0.0) - self.extended)

    def due(self, now: float) -> Kill | Literal["ask"] | float:
        """Return the action that is due now.

        Returns:
            A Kill with its reason, "ask" if the escalator has to be asked, or the seconds until the next check if no action is
            due.
        """
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
        return min((moment - now for moment in moments if moment is not None), default=CHECK_SECONDS)
