"""For people who write handlers: run one in memory with no server, crash it wherever it can be crashed, or have it all in here.

await research(testing.AsyncRun(resources=fake), "tides")       a handler is its function
testing.crash_matrix(research.inputs("tides"), resources=Fake)  killed at every cut, it comes to the same end
with testing.worker(runs) as client: ...                        a worker and a coordinator behind a client
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from coordinator.client.client import Client
from coordinator.config import Settings
from coordinator.encoding.codec import decode
from coordinator.errors import Refused
from coordinator.model.outcome import Why
from coordinator.model.run import Inputs, Note
from coordinator.services.daemon import Coordinator
from workers.handlers import context
from workers.handlers.context import Facts, Resumed, Stopped
from workers.handlers.draft import RESULT_LIMIT, Cut, Draft
from workers.handlers.handler import Handler
from workers.handlers.messages import Messages, kept
from workers.handlers.registry import Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

R = TypeVar("R")
T = TypeVar("T")


class Crash(BaseException):
    """The process dies here. Unlike a real death it unwinds the handler; whatever that still saves does not count."""


@dataclass
class Desk:
    """Stands behind a run in a test: keeps each cut at once, and can crash or lose the run at one of them."""

    crash_at: int | None = None
    cuts: list[Cut] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    stopping: Stopped | None = None
    delivered: bool = False
    at_cut: Callable[[int], None] = lambda number: None
    dead: bool = False
    threads: None = None

    def offer(self, cut: Cut) -> None:
        if self.dead:
            raise Crash
        if self.stopping is not None and self.stopping.why == "lost":
            return
        self.cuts.append(cut)
        if self.crash_at == len(self.cuts):
            self.dead = True
            raise Crash
        self.at_cut(len(self.cuts))

    async def flush(self, cut: Cut) -> None:
        self.offer(cut)

    async def wait_until_confirmed(self) -> None:
        if self.dead:
            raise Crash

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def say(self, note: Note) -> None:
        self.notes.append(note)


class _Testing(context._Context[Any]):
    """What both kinds of test run have beside what handlers see."""

    _world: Any

    def stop(self, why: Why = "drain") -> None:
        """Asks the handler to stop, as a worker does."""
        self._desk.stopping = Stopped(why)

    @property
    def saved(self) -> int:
        """How many cuts were saved in this attempt."""
        return len(self._desk.cuts)

    @property
    def notes(self) -> list[Note]:
        return self._desk.notes

    @property
    def _desk(self) -> Desk:
        assert isinstance(self._backing, Desk)
        return self._backing

    def _next(self, cause: str, unfinished: tuple[Any, ...]) -> tuple[Facts, Draft]:
        facts = self._facts
        draft = draft_of(self._desk.cuts[-1]) if self._desk.cuts else self._begun()
        resumed = Resumed(cause, 0.0, "w-test", "-", unfinished)
        token = f"{self.epoch + 1}-1-w-test"
        return Facts(facts.id, facts.kind, facts.inputs, facts.meta, facts.attempt + 1, token, resumed), draft

    def _begun(self) -> Draft:
        """What this attempt began with: nothing was saved since."""
        return draft_of(self._start)

    _start: Cut


def draft_of(cut: Cut) -> Draft:
    """What a next attempt finds of a cut."""
    items = [(data, decode(data, "message")) for data in cut.packed[: cut.length]]
    draft = Draft(Messages(items, cut.generation), decode(cut.state, "state") if cut.state else {}, cut.iteration)
    draft.phases = dict(cut.phases)
    return draft


def _first(inputs: Mapping[str, Any] | None, meta: Mapping[str, Any] | None) -> Facts:
    return Facts("test-00", "test", inputs or {}, meta or {}, 1, "1-1-w-test", None)


class AsyncRun(context.AsyncRun[Any], _Testing):
    """A run for an async handler, with no server: `await handler(testing.AsyncRun(resources=fake), …)`."""

    def __init__(
        self,
        resources: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
        draft: Draft | None = None,
        desk: Desk | None = None,
    ) -> None:
        super().__init__(facts or _first(inputs, meta), resources, draft or Draft(), desk or Desk())
        self._start = self._draft.cut()

    def after_crash(self, desk: Desk | None = None) -> AsyncRun:
        """The next attempt after this one's process died: it sees the last saved cut."""
        facts, draft = self._next("recover", ())
        return AsyncRun(self.resources, facts=facts, draft=draft, desk=desk)

    def after_release(self) -> AsyncRun:
        """The next attempt after this one was handed back: what came after the last cut is `resumed.unfinished`."""
        facts, draft = self._next("release", tuple(self.messages[len(self._saved_messages()) :]))
        return AsyncRun(self.resources, facts=facts, draft=draft)

    def _saved_messages(self) -> list[bytes]:
        cut = self._desk.cuts[-1] if self._desk.cuts else self._start
        return cut.packed[: cut.length]


class Run(context.Run[Any], _Testing):
    """A run for a plain handler, with no server: `handler(testing.Run(resources=fake), …)`."""

    def __init__(
        self,
        resources: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        facts: Facts | None = None,
        draft: Draft | None = None,
        desk: Desk | None = None,
    ) -> None:
        super().__init__(facts or _first(inputs, meta), resources, draft or Draft(), desk or Desk())
        self._start = self._draft.cut()

    def _await(self, awaitable: Coroutine[Any, Any, None]) -> None:
        """A desk never makes anybody wait, so there is no event loop."""
        try:
            awaitable.send(None)
        except StopIteration:
            return

    def after_crash(self, desk: Desk | None = None) -> Run:
        """The next attempt after this one's process died: it sees the last saved cut."""
        facts, draft = self._next("recover", ())
        return Run(self.resources, facts=facts, draft=draft, desk=desk)

    def after_release(self) -> Run:
        """The next attempt after this one was handed back: what came after the last cut is `resumed.unfinished`."""
        cut = self._desk.cuts[-1] if self._desk.cuts else self._start
        facts, draft = self._next("release", tuple(self.messages[cut.length :]))
        return Run(self.resources, facts=facts, draft=draft)


# ---- the crash matrix --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrix:
    """What a crash matrix did: how many cuts the handler has, and so how often it was killed; and what it returns."""

    cuts: int
    result: Any
    effects: Any


def crash_matrix(
    inputs: Inputs[Any],
    resources: Callable[[], R] | None = None,
    effects: Callable[[R], Any] | None = None,
) -> Matrix:
    """Kills the handler at each of its cuts in turn, and once lets it wake up as a zombie; resumes; asserts the same end.

    `resources` makes the outside world anew for each time, `effects` tells what was done to it. Both must be the same as without
    a crash. What a handler does between two cuts is done again after a crash there: the matrix kills right after a save.
    """
    handler = inputs.handler
    if not isinstance(handler, Handler):
        raise Refused("crash_matrix takes what handler.inputs(…) gives")
    whole = _Trial(handler, inputs, resources, effects)
    result, desk = whole.attempt()
    expected = whole.effects()
    for number in range(1, len(desk.cuts) + 1):
        trial = _Trial(handler, inputs, resources, effects)
        trial.crash(number)
        again, _ = trial.attempt()
        _same(again, result, f"killed at cut {number} of {len(desk.cuts)} it returned")
        _same(trial.effects(), expected, f"killed at cut {number} of {len(desk.cuts)} it did")
    if desk.cuts:
        number = (len(desk.cuts) + 1) // 2
        trial = _Trial(handler, inputs, resources, effects)
        again = trial.zombie(number)
        _same(again, result, f"with a zombie that woke up at cut {number} it returned")
        _same(trial.effects(), expected, f"with a zombie that woke up at cut {number} it did")
    return Matrix(len(desk.cuts), result, expected)


def _same(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what} {found!r}, and without a crash {expected!r}")


class _Trial:
    """One run over its attempts, in one outside world."""

    def __init__(
        self,
        handler: Handler[..., Any],
        inputs: Inputs[Any],
        resources: Callable[[], Any] | None,
        effects: Callable[[Any], Any] | None,
    ) -> None:
        self._handler, self._values, self._effects = handler, dict(inputs.values), effects
        self._world = resources() if resources is not None else None
        self._run: AsyncRun | Run | None = None

    def effects(self) -> Any:
        return None if self._effects is None else self._effects(self._world)

    def attempt(self) -> tuple[Any, Desk]:
        """The next attempt, to its end."""
        desk = Desk()
        return self._call(self._next(desk)), desk

    def crash(self, number: int) -> None:
        desk = Desk(crash_at=number)
        try:
            self._call(self._next(desk))
        except BaseException:
            if not desk.dead:
                raise
        if not desk.dead:
            raise AssertionError(f"cut {number} was not reached again: the handler does not do the same each time")

    def zombie(self, number: int) -> Any:
        """An attempt that falls asleep at a cut, another that does the work, and then the first one wakes up."""
        asleep, wake = threading.Event(), threading.Event()

        def at_cut(reached: int) -> None:
            if reached == number:
                asleep.set()
                wake.wait()
                first._desk.stopping = Stopped("lost")

        first = self._next(Desk(at_cut=at_cut))
        sleeper = threading.Thread(target=self._quietly, args=(first,), daemon=True)
        sleeper.start()
        if not asleep.wait(60):
            raise AssertionError(f"cut {number} was not reached again within a minute")
        try:
            return self.attempt()[0]
        finally:
            wake.set()
            sleeper.join(60)

    def _quietly(self, run: AsyncRun | Run) -> None:
        try:
            self._call(run)
        except BaseException:  # noqa: BLE001  # however a zombie ends, it does not count
            return

    def _next(self, desk: Desk) -> AsyncRun | Run:
        if self._run is None:
            kind: type[AsyncRun] | type[Run] = AsyncRun if self._handler.is_async else Run
            self._run = kind(self._world, inputs=self._values, desk=desk)
        else:
            self._run = self._run.after_crash(desk)
        return self._run

    def _call(self, run: AsyncRun | Run) -> Any:
        """In a thread of its own, so that it works inside and outside of an event loop."""
        ended: list[Any] = []

        def call() -> None:
            try:
                value = self._handler.function(run, **self._values)
                value = asyncio.run(_awaited(value)) if self._handler.is_async else value
                ended.append((decode(kept(value, "the result", RESULT_LIMIT), "the result"), None))
            except BaseException as error:  # noqa: BLE001  # handed over to the caller's thread
                ended.append((None, error))

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join()
        value, error = ended[0]
        if error is not None:
            raise error
        return value


async def _awaited(value: Coroutine[Any, Any, T]) -> T:
    return await value


# ---- the whole product in this process ---------------------------------------------------------------------------------


@contextmanager
def worker(registry: Registry[Any], url: str | None = None, **options: Any) -> Iterator[Client]:
    """A worker and a coordinator in a thread of this process, on a store in memory; gives a client."""
    settings = Settings(url or f"memory://testing-{uuid4().hex}", "testing")
    started: list[Any] = []
    ready = threading.Event()

    async def main() -> None:
        coordinator = Coordinator(settings)
        working = Worker(registry, WorkerOptions(settings, **{"grace": 1.0, **options}))
        loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(coordinator.run()), asyncio.create_task(working.run())]
        started.extend([loop, coordinator, working])
        announce = asyncio.create_task(working.ready.wait())
        done, _ = await asyncio.wait({announce, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        ready.set()
        for task in done - {announce}:
            task.result()
        await asyncio.gather(*tasks)

    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001  # raised where the test is
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="testing.worker", daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    loop, coordinator, working = started
    try:
        with Client(settings.url, settings.namespace) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(working.stop)
        loop.call_soon_threadsafe(coordinator.stop)
        thread.join(30)
