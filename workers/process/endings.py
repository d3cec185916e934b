"""Remove ended attempts from the worker."""

from __future__ import annotations

from coordinator.model.outcome import Outcome
from workers.attempt.attempt import Attempt
from workers.attempt.deadlines.critic import Critic
from workers.attempt.recorder import Recorder
from workers.process.attempt_table import AttemptTable
from workers.process.stopping.shutdown import Shutdown
from workers.process.tasks import TaskSet


class Endings:
    """Remove attempts whose outcome was recorded, or could not be recorded.

    Args:
        table: The attempts of the process.
        critic: Watches the deadlines of the attempts.
        recorder: Records outcomes.
        shutdown: The shutdown of the worker, which is requested after `limit` attempts.
        tasks: Holds the tasks of handlers that were left behind.
        limit: The worker shuts down after this number of attempts. None for no limit.
    """

    def __init__(
        self,
        table: AttemptTable,
        critic: Critic,
        recorder: Recorder,
        shutdown: Shutdown,
        tasks: TaskSet,
        limit: int | None,
    ) -> None:
        self._table, self._critic, self._recorder = table, critic, recorder
        self._shutdown, self._tasks, self._limit = shutdown, tasks, limit
        self.unrecorded: list[
            Attempt
        ] = []  # attempts that ended during the shutdown, and whose outcome the server does not know

    def finish(self, attempt: Attempt, *, recorded: bool) -> None:
        """Remove an attempt. Do nothing if it was removed before.

        Args:
            attempt: The attempt.
            recorded: True if the server knows the outcome.
        """
        if not self._table.remove(attempt):
            return
        self._critic.forget(attempt)
        if not recorded and self._shutdown.is_requested():
            # A worker that keeps running does not need this list: it releases the run after its next comparison with the server.
            self.unrecorded.append(attempt)
        if self._limit is not None and self._table.ended >= self._limit:
            self._shutdown.request()

    async def end_without_handler(self, attempt: Attempt, outcome: Outcome) -> None:
        """Record an outcome although the handler may still run, and remove the attempt."""
        attempt.decide_without_handler()
        if attempt.task is not None:
            self._tasks.hold(attempt.task)  # the handler may still run, and the table no longer holds its task
        recorded = await self._recorder.record(attempt, outcome)
        self.finish(attempt, recorded=recorded)
