"""One round of a matrix: a run with all its attempts, and at most one fault."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from coordinator.encoding.codec import decode
from coordinator.model.enqueue import Inputs
from coordinator.model.policies.budget import TOPIC
from coordinator.store.plans.attempts import Condition
from workers.handlers.checkpoint.draft import RESULT_LIMIT
from workers.handlers.checkpoint.messages import encode_plain
from workers.handlers.current_run import enter_run
from workers.handlers.facts import Stopped
from workers.handlers.handler import Handler
from workers.testing.memory_backing import MemoryBacking
from workers.testing.memory_run import AsyncRun, Run
from workers.testing.memory_server import MemoryServer

T = TypeVar("T")
Fault: TypeAlias = Literal["crash", "loss", "drain", "zombie"]
ZOMBIE_SECONDS = 60.0  # how long a round waits for the end of a paused attempt after it continues


class Round:
    """One run with all its attempts, and with its own stand-in for the outside world.

    Args:
        handler: The handler.
        inputs: The inputs of the run.
        resources: Creates a stand-in for the outside world.
        effects: Returns the effects of the handler on this stand-in.
        signals: The signals for the run, topic and payload, in the order in which they are sent.
        late: False to send all signals before the run starts, and to let the run's clock jump to the end of each sleep. True to
            suspend the run at each wait, and to send a signal only when the run waits for it.

    Attributes:
        cuts: How many cuts all attempts have reached.
        waited: True if the handler has begun a wait.
        wakes: How often the run was suspended and woken.
        effect_cuts: The numbers of the cuts, counted over all attempts, that saved an effect of `run.once` as done.
    """

    def __init__(
        self,
        handler: Handler[..., Any],
        inputs: Inputs[Any],
        resources: Callable[[], Any] | None,
        effects: Callable[[Any], Any] | None,
        signals: Sequence[tuple[str, Any]],
        late: bool,
    ) -> None:
        self._handler, self._values, self._effects, self._late = handler, dict(inputs.values), effects, late
        self._world = resources() if resources is not None else None
        self._server = MemoryServer()
        self._unsent = [(topic, handler.write_signal(topic, payload)) for topic, payload in signals]
        self.cuts, self.waited, self.wakes = 0, False, 0
        self.effect_cuts: list[int] = []
        if not late:
            self._send(len(self._unsent))

    def effects(self) -> Any:
        """Return the effects of the handler on the stand-in for the outside world."""
        return None if self._effects is None else self._effects(self._world)

    def emitted(self) -> list[Any]:
        """Return the events that a reader of the run's output has at the end."""
        return [*self._server.output]

    def play(self, fault: Fault | None = None, number: int = 0) -> Any:
        """Execute the run to its end, with one fault at a cut.

        Args:
            fault: None for no fault; "crash" to kill the attempt after the cut was saved; "loss" to kill it before the cut is
                saved; "drain" to ask it to stop; "zombie" to pause the attempt, let a second attempt do the work, and let the
                first attempt continue at the end.
            number: The number of the cut, counted over all attempts.

        Returns:
            The result of the run.

        Raises:
            AssertionError: If the cut was not reached, or the run waits for a signal that is not in `signals`.
        """
        zombie: _Attempt | None = None
        run = self._first_run(self._backing(fault, number))
        try:
            while True:
                attempt = _Attempt(self._handler, self._values, run, number - self.cuts if fault == "zombie" else None)
                backing = run._memory
                self.effect_cuts += [self.cuts + cut for cut in backing.effect_cuts]
                self.cuts, self.waited = self.cuts + len(backing.cuts), self.waited or backing.waited
                if attempt.asleep:
                    zombie, fault = attempt, None
                    run = run.after_crash(self._backing(None, 0))
                elif backing.dead:
                    fault = None
                    run = run.after_crash(self._backing(None, 0))
                elif backing.condition is not None:  # true even if the handler has swallowed the stop
                    self._end_wait(backing.condition)
                    run = run.after_wake(self._backing(fault, number))
                elif backing.stopping is not None and backing.delivered:
                    fault = None
                    run = run.after_release(self._backing(None, 0))
                elif fault in ("crash", "loss", "zombie") and attempt.error is None:
                    raise AssertionError(
                        f"cut {number} was not reached again: the handler does not do the same each time"
                    )
                else:
                    return attempt.result()
        finally:
            if zombie is not None:
                zombie.wake_up()

    def _backing(self, fault: Fault | None, number: int) -> MemoryBacking:
        """Return the backing of the next attempt. `number` is the number of the cut, counted over all attempts."""
        left = number - self.cuts

        def drain(reached: int) -> None:
            if reached == left:
                backing.stopping = Stopped("drain")

        backing = MemoryBacking(server=self._server, suspends=self._late)
        if fault == "crash":
            backing.crash_at = left
        if fault == "loss":
            backing.lose_at = left
        if fault == "drain":
            backing.at_cut = drain
        return backing

    def _first_run(self, backing: MemoryBacking) -> AsyncRun | Run:
        kind: type[AsyncRun] | type[Run] = AsyncRun if self._handler.is_async else Run
        return kind(self._world, inputs=self._values, backing=backing)

    def _end_wait(self, condition: Condition) -> None:
        """Send the next signal that the run waits for, and all signals before it. If there is none, the timeout ends the wait.

        Raises:
            AssertionError: If there is no such signal and no timeout.
        """
        fitting = [number for number, (topic, _) in enumerate(self._unsent, 1) if topic in condition.received]
        if not fitting and condition.deadline is None:
            topics = list(condition.received)
            if TOPIC in topics:
                raise AssertionError(
                    f"the budget of the handler of {self._handler.kind!r} is spent, and no grant is left: pass "
                    'grants=[{"usd": 5}], with as many grants as the run needs'
                )
            raise AssertionError(
                f"the handler of {self._handler.kind!r} waits for a signal of topic {' or '.join(map(repr, topics))}, and "
                f"no signal is left: pass signals=[({topics[0]!r}, payload)], with one signal for each receive"
            )
        self._send(fitting[0] if fitting else 0)
        self.wakes += 1

    def _send(self, count: int) -> None:
        for topic, payload in self._unsent[:count]:
            self._server.send(topic, payload)
        del self._unsent[:count]


class _Attempt:
    """A call of the handler in a thread of its own, so that a test may execute a round inside or outside of an event loop.

    The constructor calls the handler, and returns when the handler has ended, or is paused at a cut.

    Args:
        handler: The handler.
        values: The inputs of the run.
        run: The run of the attempt.
        sleep_at: The number of the cut at which the handler is paused; None to pause it nowhere.

    Attributes:
        asleep: True if the handler was paused.
        error: The exception that the handler raised.
    """

    def __init__(
        self, handler: Handler[..., Any], values: dict[str, Any], run: AsyncRun | Run, sleep_at: int | None
    ) -> None:
        self._handler, self._values, self._run = handler, values, run
        self._settled, self._woken = threading.Event(), threading.Event()
        self._value: Any = None
        self.asleep = False
        self.error: BaseException | None = None
        if sleep_at is not None:
            run._memory.at_cut = lambda reached: self._fall_asleep() if reached == sleep_at else None
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()
        self._settled.wait()

    def result(self) -> Any:
        """Return the result, or raise the exception of the handler."""
        if self.error is not None:
            raise self.error
        return self._value

    def wake_up(self) -> None:
        """Let the paused handler continue to its end. At its next cut it learns that the run belongs to another attempt."""
        self._woken.set()
        self._thread.join(ZOMBIE_SECONDS)

    def _fall_asleep(self) -> None:
        self.asleep = True
        self._settled.set()
        self._woken.wait()
        self._run._memory.stopping = Stopped("lost")

    def _call(self) -> None:
        try:
            self._run._declare_topics(self._handler.read_signal)
            self._run._declare_budget(self._handler.budget)
            enter_run(self._run)  # this thread has a context of its own
            value = self._handler.function(self._run, **self._handler.arguments(self._values))
            value = asyncio.run(_await_value(value)) if self._handler.is_async else value
            self._value = self._stored_and_read(value)
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            self.error = error
        finally:
            self._settled.set()

    def _stored_and_read(self, value: Any) -> Any:
        """Return the result in the form in which a client gets it: encoded for the store, and decoded again."""
        value = decode(encode_plain(self._handler.plain_result(value), "the result", RESULT_LIMIT), "the result")
        return value if self._handler.read_result is None else self._handler.read_result(value)


async def _await_value(value: Coroutine[Any, Any, T]) -> T:
    return await value
