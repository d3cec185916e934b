"""Endings of attempts whose spans are made later, many at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from coordinator.middleware import AttemptEnding
from coordinator.tracing.attempt_span import AttemptSpan

logger = logging.getLogger(__name__)
BATCH = 32  # endings that are reported at once; this takes about 2 ms
DELAY = 0.2  # seconds that an ending waits

Report = Callable[[AttemptEnding, AttemptSpan, int], None]


class LateEndings:
    """Hold the endings of attempts, and report them when there are 32 of them, or 0.2 s after the first one.

    Several workers may share it, each in a thread with its own event loop.

    Args:
        report: Makes the spans for an ending. Its arguments are those of `add`.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._held: deque[tuple[AttemptEnding, AttemptSpan, int]] = deque()
        self._timer_loop: asyncio.AbstractEventLoop | None = None  # the loop that reports the endings after the delay

    def add(self, ending: AttemptEnding, span: AttemptSpan, ended: int) -> None:
        """Add an ending.

        Args:
            ending: The ending.
            span: The span of the attempt.
            ended: The time of the end in Unix nanoseconds.
        """
        self._held.append((ending, span, ended))
        if len(self._held) >= BATCH:
            self.flush()
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._timer_loop is not loop:  # an earlier loop may have ended before its timer
            self._timer_loop = loop
            loop.call_later(DELAY, self._flush_on_time)

    def flush(self) -> None:
        """Report all endings that are held. An error is logged, and costs only the spans of its attempt."""
        while self._held:
            try:
                ending, span, ended = self._held.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                self._report(ending, span, ended)
            except Exception:
                logger.exception(
                    "the spans of attempt %d at run %s are lost", ending.attempt.attempt, ending.attempt.run
                )

    def _flush_on_time(self) -> None:
        self._timer_loop = None
        self.flush()
