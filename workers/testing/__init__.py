"""Test handlers without a server, kill them at every cut, or run the whole product in the test's process.

A handler is a function: call it with a run that lives in memory.

    async def test_it_answers() -> None:
        answer = await research(testing.AsyncRun(resources=FakeModel()), "tides")
        assert answer == "..."

Prove that a crash at any cut leads to the same result and the same effects on the outside world:

    def test_it_survives_every_crash() -> None:
        testing.crash_matrix(research.inputs("tides"), resources=FakeModel, effects=lambda model: model.calls)

Prove that a deploy at any cut leads to the same result too, and repeats nothing:

    def test_a_deploy_costs_nothing() -> None:
        testing.drain_matrix(research.inputs("tides"), resources=FakeModel, effects=lambda model: model.calls)

Signals and time are part of a run in memory. A signal may be sent before the handler is called. Time jumps to the end of a sleep
or a timeout. A wait that only a signal can end stops the handler, as when its run is suspended:

    async def test_it_asks_and_continues() -> None:
        run = testing.AsyncRun()
        with pytest.raises(Stopped):
            await purchase(run, "tea")
        assert run.waits_for == ("approval",)
        run.send("approval", {"by": "ada"})
        assert await purchase(run.after_wake(), "tea") == "bought for ada"

Both matrices take the signals of the run, and send them before it starts or only when it waits for them:

    def test_it_survives_every_crash_and_every_wait() -> None:
        testing.crash_matrix(purchase.inputs("tea"), signals=[("approval", {"by": "ada"})])

Run a worker and a coordinator in this process, and use them through a client:

    def test_the_whole_way() -> None:
        with testing.worker(runs) as client:
            assert client.enqueue(research.inputs("tides")).result(timeout=10) == "..."
"""

from __future__ import annotations

import warnings
from typing import Any

from workers.testing.in_process import worker
from workers.testing.matrix import Matrix, crash_matrix, drain_matrix
from workers.testing.memory_backing import Crash, MemoryBacking, restore_draft
from workers.testing.memory_run import AsyncRun, Run
from workers.testing.memory_server import EnqueuedRun, LimitedCall

__all__ = [
    "AsyncRun",
    "Crash",
    "EnqueuedRun",
    "LimitedCall",
    "Matrix",
    "MemoryBacking",
    "Run",
    "crash_matrix",
    "drain_matrix",
    "restore_draft",
    "worker",
]

_RENAMED: dict[str, Any] = {"Desk": MemoryBacking, "draft_of": restore_draft}


def __getattr__(name: str) -> Any:
    """Return an object by its old name, with a deprecation warning.

    Raises:
        AttributeError: If there is no such name.
    """
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"workers.testing.{name} is now {new.__name__}", DeprecationWarning, stacklevel=2)
    return new
