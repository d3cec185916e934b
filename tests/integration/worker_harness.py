"""Workers in this process on a real server: enqueue by plans, wait for statuses, and make delayed runs due by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import redis

from coordinator.clock import Clock, SystemClock
from coordinator.config import Settings
from coordinator.encoding.codec import decode, encode
from coordinator.model.names import route
from coordinator.model.run import Counters, RunView
from coordinator.model.run_id import RunIds
from coordinator.store.keys import Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.transport.wire import AsyncWire, Plan, drive_async
from coordinator.views.run_view import run_view
from tests.waiting import eventually
from workers import Registry
from workers.process.options import WorkerOptions
from workers.process.worker import Worker

T = TypeVar("T")
HANG = 60.0  # No test takes this long unless it hangs.


@dataclass
class Bench:
    """A namespace, with the actions of a producer, a coordinator and an observer."""

    url: str
    namespace: Namespace
    wire: AsyncWire
    admin: Any
    ids: RunIds = field(default_factory=RunIds)
    workers: list[tuple[Worker, asyncio.Task[int]]] = field(default_factory=list)

    async def do(self, plan: Plan[T]) -> T:
        return await drive_async(self.wire, plan)

    # -- producers

    async def enqueue(
        self, kind: str, inputs: Mapping[str, Any] | None = None, *, partition: int = 0, meta: Mapping[str, Any] | None = None,
        spec: bytes | None = None, queue: str = "default",
    ) -> str:  # fmt: skip
        """Enqueue a run and return its id. Use `spec` for bytes that a normal enqueue would not write."""
        id = self.ids.make(time.time(), partition)
        packed = encode([dict(inputs or {}), dict(meta or {}), {}], "spec") if spec is None else spec
        new = client_plans.NewRun(id, route(queue, kind, 0), packed)
        assert await self.do(client_plans.enqueue(self.namespace, [new])) == [("created", id)]
        return id

    async def cancel(self, id: str) -> None:
        await self.do(client_plans.cancel(self.namespace.keys_of(id), id, operation=f"cancel-{id}", grace=30))

    # -- workers

    def worker(
        self, registry: Registry[Any], *, url: str = "", clock: Clock | None = None, **options: Any
    ) -> tuple[Worker, asyncio.Task[int]]:
        """Return a worker that has started."""
        settings = Settings(url or self.url, self.namespace.name)
        found = WorkerOptions(settings, **{"grace": 5.0, "concurrency": 10, **options})
        worker = Worker(registry, found, clock=clock or SystemClock())
        task = asyncio.get_running_loop().create_task(worker.run())
        self.workers.append((worker, task))
        return worker, task

    async def end(self, worker: Worker, task: asyncio.Task[int]) -> int:
        """Stop a worker and return its exit code."""
        worker.stop()
        async with asyncio.timeout(HANG):
            return await task

    async def abandon(self, worker: Worker, partition: int = 0) -> coordinator_plans.Recovered:
        """Abandon the runs of a worker, as its supervisor does when the process is gone. Here the worker is still running."""
        return await self.do(
            coordinator_plans.abandon(self.namespace.keys(partition), worker._membership.leases[partition].worker)
        )

    # -- coordinators

    async def make_due(self, id: str) -> None:
        """Make a delayed run due now."""
        keys = self.namespace.keys_of(id)
        self.admin.zadd(keys.delayed(), {id: 1}, xx=True)
        await self.do(coordinator_plans.due(keys))

    # -- observers

    def run(self, id: str) -> dict[str, bytes]:
        return {name.decode(): value for name, value in self.admin.hgetall(self.namespace.keys_of(id).run(id)).items()}

    def status(self, id: str) -> str:
        return self.run(id).get("status", b"missing").decode()

    def counters(self, id: str) -> Counters:
        return Counters.parse(self.run(id)["counters"].decode())

    def result(self, id: str) -> Any:
        found = self.run(id).get("result")
        return None if found is None else decode(found, "result")

    async def view(self, id: str) -> RunView:
        """The run as a client sees it."""
        reply = await self.do(client_plans.view(self.namespace.keys_of(id), id))
        assert reply is not None
        return run_view(id, reply)

    def error(self, id: str) -> list[str]:
        """Return the type, the message and the traceback."""
        found: list[str] = decode(self.run(id)["error"], "error")
        return found

    def state(self, id: str) -> Any:
        found = self.admin.hget(self.namespace.keys_of(id).ckpt(id), "state")
        return decode(found, "state") if found else None

    def due_in(self, id: str) -> float:
        """Return the seconds that a delayed run still waits."""
        due: float = self.admin.zscore(self.namespace.keys_of(id).delayed(), id)
        seconds, micro = self.admin.time()
        left: float = due / 1000 - seconds - micro / 1e6
        return left

    async def until(self, id: str, *statuses: str) -> str:
        """Wait until the run has one of these statuses, and return it."""
        await eventually(
            lambda: self.status(id) in statuses, f"run {id} to be {' or '.join(statuses)}, not {self.status(id)}"
        )
        return self.status(id)

    async def attempted(self, id: str, attempt: int) -> None:
        """Return when the run was claimed that many times."""
        await eventually(lambda: self.counters(id).attempt >= attempt, f"attempt {attempt} of run {id}")

    async def outcome(self, id: str) -> str:
        """Return the status of a run after its attempt."""
        return await self.until(id, "completed", "failed", "delayed", "cancelled", "dead")


async def performing(worker: Worker, count: int = 1) -> None:
    """Return when that many handlers have started and not ended."""
    await eventually(lambda: sum(a.performing for a in worker.attempts.values()) >= count, f"{count} handlers to run")


@asynccontextmanager
async def bench(url: str, name: str, partitions: int = 1) -> AsyncIterator[Bench]:
    """Yield a bench, and stop its workers even if the test fails."""
    wire = AsyncWire(Settings(url, name).address)
    admin: Any = redis.Redis.from_url(url, protocol=2, socket_timeout=10)
    made: Bench | None = None
    try:
        namespace = await drive_async(wire, namespace_plans.create(name, birth="b1", partitions=partitions))
        made = Bench(url, namespace, wire, admin)
        yield made
    finally:
        if made is not None:
            await _stop_all(made)
        await wire.close()
        admin.close()


async def _stop_all(made: Bench) -> None:
    running = [(worker, task) for worker, task in made.workers if not task.done()]
    for worker, _ in running:
        worker.stop()
        worker.stop()
    if running:
        _, late = await asyncio.wait([task for _, task in running], timeout=HANG)
        assert not late, "a worker did not stop"
    await asyncio.gather(*(task for _, task in made.workers), return_exceptions=True)
