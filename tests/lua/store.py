"""A namespace with the test clock, on which a test calls one script at a time. Time moves only when the test moves it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import redis

from coordinator.config import address
from coordinator.model.run import Counters
from coordinator.model.run_id import RunIds, child_id
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.attempts import Delta
from coordinator.store.plans.clients import NewRun
from coordinator.store.plans.coordinators import DueResult, Recovered
from coordinator.store.plans.workers import Claimed, HeartbeatReply, WorkerRecord
from coordinator.store.replies import text
from coordinator.store.script import Request
from coordinator.store.transport.connections import memory
from coordinator.store.transport.wire import Wire, drive

T = TypeVar("T")

NOW = 1_700_000_000_000
LEASE = 15_000
ROUTES = ("default:k@0", "default:k@1", "default:k@2")
HEAD = ("seq", "generation", "length", "iteration", "peak", "progress", "schema", "updated", "appended", "size")


def delta(
    seq: int, *, acked: int | None = None, generation: int = 1, base: int = 0, count: int = 0, iteration: int = 0, schema: int = 1,
    state: bytes | None = None, **more: Any,
) -> Delta:  # fmt: skip
    """Return a save of `count` messages starting at `base`. By default the previous save counts as acknowledged."""
    chunk = b"".join(b"m%d;" % index for index in range(base, base + count))
    return Delta(
        seq, seq - 1 if acked is None else acked, generation, base, count, chunk, iteration, schema, state, **more
    )


def messages(count: int) -> list[str]:
    return [f"m{index}" for index in range(count)]


class Store:
    """A method for each script, with defaults that suit most tests."""

    def __init__(self, url: str, name: str, partitions: int = 1, clock: str = "test") -> None:
        where = address(url)
        self.wire = Wire(where, timeout=5)
        self.client: Any = (
            memory.sync_client(where.name) if where.scheme == "memory" else redis.Redis.from_url(url, protocol=2)
        )
        self.now = NOW
        self.ns = self.do(namespace_plans.create(name, birth="b1", partitions=partitions, clock=clock))
        self.keys = self.ns.keys(0)
        self.orders = itertools.count(1)  # of the calls of join_children.lua
        self._ids = RunIds()
        self._numbers: Counter[str] = Counter()

    def close(self) -> None:
        if keys := self._all_keys():
            self.client.unlink(*keys)
        self.client.close()
        self.wire.close()

    def do(self, plan: Generator[Any, Any, T]) -> T:
        return drive(self.wire, plan)

    def later(self, ms: int) -> None:
        self.now += ms

    @property
    def at(self) -> str:
        return str(self.now)

    # -- producers

    def id(self, partition: int = 0) -> str:
        return self._ids.make(self.now / 1000, partition)

    def enqueue(self, id: str = "", route: str = ROUTES[0], spec: bytes = b"spec", **options: Any) -> str:
        """Enqueue a new run and return its id."""
        id = id or self.id()
        assert self.ask_enqueue(NewRun(id, route, spec, **options)) == ("created", id)
        return id

    def ask_enqueue(self, run: NewRun) -> Any:
        return self.do(client_plans.enqueue(self.ns, [run], now=self.at))[0]

    def cancel(self, id: str, operation: str = "o1", grace: float = 10, life: int | None = None) -> list[str]:
        return self.do(client_plans.cancel(self.keys, id, operation=operation, grace=grace, life=life, now=self.at))

    def revive(self, id: str, operation: str = "r1", **options: Any) -> str:
        return self.do(client_plans.revive(self.keys, id, operation=operation, now=self.at, **options))

    def send(self, id: str, topic: str = "t", payload: bytes = b"p", operation: str = "s1", key: str = "") -> list[str]:
        return self.do(
            client_plans.send(self.keys, id, topic=topic, payload=payload, operation=operation, key=key, now=self.at)
        )

    def wait(self, id: str, client: str = "c1") -> list[Any]:
        return [text(part) for part in self.do(client_plans.wait(self.keys, id, client))]

    def register(self, id: str, client: str = "c1") -> list[Any]:
        """Register a client that blocks on its wake list next."""

        def plan() -> Generator[Request, Any, Any]:
            return (yield client_plans.register(self.keys, id, client))

        return [text(part) for part in self.do(plan())]

    def limit(self, at_once: int | str, group: str = "", operation: str = "") -> bool:
        """Set the limit of kind `k` or of a group. '-' is no limit, and empty text removes the limit."""
        self._numbers["limit"] += 1
        mark = operation or f"l{self._numbers['limit']}"
        return self.do(group_plans.set_limit(self.keys, "k", group, str(at_once), mark))

    # -- workers

    def join(
        self,
        worker: str = "w1",
        lease: int = LEASE,
        birth: str = "b1",
        routes: Sequence[str] = ROUTES,
        limits: str = "",
        budgets: str = "",
        code: str = "c1",
    ) -> str:
        member = WorkerRecord(
            worker, lease, "host", 1, "s", "fleet", code, 10, tuple(routes), limits=limits, budgets=budgets
        )
        return self.do(worker_plans.join(self.keys, birth, member, now=self.at))

    def beat(
        self, worker: str = "w1", lease: int = LEASE, floor: int = 0, held: Iterable[Claimed] | None = None,
        stuck: Sequence[str] = (), loading: Mapping[str, int] | None = None, limited: Mapping[str, str] | None = None,
    ) -> HeartbeatReply | None:  # fmt: skip
        pairs = None if held is None else [(run.id, run.token) for run in held]
        plan = worker_plans.heartbeat(
            self.keys,
            worker,
            lease_ms=lease,
            floor=floor,
            held=pairs,
            stuck=stuck,
            loading=loading,
            limited=limited,
            now=self.at,
        )
        return self.do(plan)

    def claim(
        self,
        worker: str = "w1",
        want: int = 10,
        *,
        number: int = 0,
        alone: bool = False,
        routes: Sequence[str] = ROUTES,
        **more: Any,
    ) -> tuple[str, list[Claimed]]:
        """Claim runs, with the next claim number unless one is given."""
        number = number or self._numbers[worker] + 1
        self._numbers[worker] = max(number, self._numbers[worker])
        return self.do(
            worker_plans.claim(
                self.keys, worker, number=number, want=want, routes=routes, alone=alone, now=self.at, **more
            )
        )

    def take(self, worker: str = "w1", **more: Any) -> Claimed:
        """Register a worker if needed, and return the only run that its claim yields."""
        self.join(worker)
        _, runs = self.claim(worker, **more)
        assert len(runs) == 1, f"one run was expected, not {runs}"
        return runs[0]

    def running(self, worker: str = "w1", **options: Any) -> Claimed:
        """Enqueue a new run and return it as claimed by a worker."""
        id = self.enqueue(**options)
        self.join(worker)
        runs = {run.id: run for run in self.claim(worker)[1]}
        return runs[id]

    def leave(self, worker: str = "w1") -> list[tuple[str, str]]:
        return self.do(worker_plans.leave(self.keys, worker))

    def load(self, run: Claimed, **more: Any) -> Any:
        return self.do(worker_plans.load(self.keys, run.id, run.token, **more))

    def save(self, run: Claimed, saved: Delta) -> str:
        return self.do(attempt_plans.checkpoint(self.keys, run.id, run.token, saved, now=self.at))[0]

    def complete(self, run: Claimed, result: bytes = b"result", output: bytes = b"") -> str:
        return self.do(attempt_plans.complete(self.keys, run.id, run.token, result, now=self.at, output=output))

    def fail(self, run: Claimed, error: bytes = b"error", last: bytes = b"") -> str:
        return self.do(attempt_plans.fail(self.keys, run.id, run.token, error, last, now=self.at))

    def retry(
        self,
        run: Claimed,
        delay: float = 1,
        error: bytes = b"error",
        last: bytes = b"",
        from_start: bool = False,
        asked: bool = False,
    ) -> str:
        how = {"delay": delay, "error": error, "from_start": from_start, "asked": asked, "delta": last}
        return self.do(attempt_plans.retry(self.keys, run.id, run.token, **how, now=self.at))  # type: ignore[arg-type]

    def release(self, run: Claimed, mode: str = "stopping", jitter: float = 0.5, last: bytes = b"") -> str:
        return self.do(
            attempt_plans.release(self.keys, run.id, run.token, mode=mode, jitter=jitter, delta=last, now=self.at)
        )

    def emit(self, run: Claimed, output: attempt_plans.Output) -> str:
        (answer,) = self.do(attempt_plans.emit(self.keys.at, [(run.id, run.token, output)], now=self.at))
        return answer

    def join_children(
        self, run: Claimed, base: str, count: int, order: int | None = None, **more: Any
    ) -> tuple[str, int]:
        order = next(self.orders) if order is None else order
        owner = (self.keys, run.id, run.token)
        return self.do(attempt_plans.join_children(*owner, order=order, base=base, count=count, **more))

    def drop_steps(self, run: Claimed, *bases: str, order: int | None = None) -> str:
        order = next(self.orders) if order is None else order
        return self.do(attempt_plans.drop_steps(self.keys, run.id, run.token, bases, order=order))

    def child(self, parent: Claimed, base: str, index: int, life: int = 1, **options: Any) -> Any:
        """Enqueue a joined child, and return the answer."""
        joined = f"{parent.id} {life} {base} {index}"
        return self.ask_enqueue(NewRun(child_id(base, index), ROUTES[0], b"spec", parent=joined, **options))

    def collect(
        self, run: Claimed, base: str, by: str = "index", start: int = 0, **more: Any
    ) -> attempt_plans.Collected:
        return self.do(attempt_plans.collect(self.keys, run.id, run.token, base=base, by=by, start=start, **more))

    def suspend(
        self, run: Claimed, last: bytes = b"", deadline: int | None = None, children: Any = None, **received: int
    ) -> str:
        """Suspend a run until a deadline, until a signal of one of the topics arrives, or until children have ended."""
        condition = attempt_plans.Condition(deadline, received, children or {})
        return self.do(
            attempt_plans.suspend(self.keys, run.id, run.token, condition=condition, delta=last, now=self.at)
        )

    def receive(
        self, run: Claimed, deadline: int | None = None, timeout_ms: int | None = None, **received: int
    ) -> attempt_plans.Received:
        condition = attempt_plans.Condition(deadline, received)
        return self.do(
            attempt_plans.receive(self.keys, run.id, run.token, condition, timeout_ms=timeout_ms, now=self.at)
        )

    def reject(self, run: Claimed, proven: bool = True, jitter: float = 0.5) -> str:
        return self.do(
            attempt_plans.reject(
                self.keys, run.id, run.token, proven=proven, error=b"error", jitter=jitter, now=self.at
            )
        )

    def extend(self, run: Claimed, number: int = 1, seconds: float = 60) -> str:
        return self.do(attempt_plans.extend(self.keys, run.id, run.token, number=number, seconds=seconds))

    def kill(self, run: Claimed, error: bytes = b"why") -> str:
        return self.do(attempt_plans.kill(self.keys, run.id, run.token, error))

    # -- coordinators

    def judge(self, tick: float = 1) -> tuple[list[str], int]:
        workers, held, _ = self.do(coordinator_plans.judge(self.keys, "c1", tick=tick, now=self.at))
        return workers, held

    def tick_for(self, ms: int) -> None:
        """Let a coordinator judge every second for a while."""
        for _ in range(ms // 1000):
            self.later(1000)
            self.judge()

    def recover(self, worker: str = "w1", batch: int = 100, jitter: float = 0.5, locked: bool = True) -> Recovered:
        if locked:
            assert self.lock("recovery", "t1")
        return self.do(
            coordinator_plans.recover(
                self.keys, worker, lock="recovery", token="t1", tick=1, batch=batch, jitter=jitter, now=self.at
            )
        )

    def abandon(self, worker: str = "w1", **more: Any) -> Recovered:
        return self.do(coordinator_plans.abandon(self.keys, worker, now=self.at, **more))

    def do_abandon_batch(self, batch: int) -> None:
        """Send only the first batch of an abandon, as a supervisor that then dies does."""
        next_call = next(coordinator_plans.abandon(self.keys, "w1", batch=batch, now=self.at))
        self.wire.ask([next_call])

    def due(self, batch: int = 500) -> DueResult:
        return self.do(coordinator_plans.due(self.keys, batch=batch, now=self.at))

    def sweep(self) -> int:
        """Sweep all groups, and return the number of runs that left their lines."""
        return self.do(group_plans.sweep(self.keys, now=self.at)).admitted

    def trim(self, cap: int = 10_000) -> int:
        return self.do(coordinator_plans.trim(self.keys, cap=cap, now=self.at))

    def lock(self, name: str, token: str, ttl: float = 60) -> bool:
        return self.do(coordinator_plans.lock(self.keys, name, token, ttl))

    def crash(self, run: Claimed) -> None:
        """Let the worker of a run die, so that its supervisor abandons it."""
        self.abandon(run.token.split("-", 2)[2])

    # -- reading what is stored

    def run(self, id: str) -> dict[str, str]:
        return {field.decode(): value.decode() for field, value in self.client.hgetall(self.keys.run(id)).items()}

    def status(self, id: str) -> str:
        return self.run(id).get("status", "missing")

    def counters(self, id: str) -> Counters:
        return Counters.parse(self.run(id)["counters"])

    def head(self, id: str) -> dict[str, int]:
        text = self.client.hget(self.keys.ckpt(id), "head")
        return {} if text is None else dict(zip(HEAD, map(int, text.split()), strict=True))

    def state(self, id: str) -> bytes | None:
        found: bytes | None = self.client.hget(self.keys.ckpt(id), "state")
        return found

    def phases(self, id: str) -> dict[str, bytes]:
        stored = {field.decode(): value for field, value in self.client.hgetall(self.keys.ckpt(id)).items()}
        return {field: value for field, value in stored.items() if field.startswith("phase:")}

    def transcript(self, id: str) -> list[str]:
        """Return the messages as a resumed run reads them, and check that chunks have no gap and no overlap."""
        head = self.head(id)
        chunks = self.client.hgetall(self.keys.messages(id, str(head.get("generation", 0))))
        found: list[str] = []
        for index, chunk in sorted((int(index), chunk.decode()) for index, chunk in chunks.items()):
            assert index == len(found), f"the chunk at {index} does not follow {len(found)} messages"
            found += chunk.split(";")[:-1]
        assert len(found) == head.get("length", 0)
        return found

    def line(self, key: str) -> list[str]:
        """Return the members of a zset, lowest score first."""
        return [member.decode() for member in self.client.zrange(key, 0, -1)]

    def score(self, key: str, member: str) -> int | None:
        found = self.client.zscore(key, member)
        return None if found is None else int(found)

    def members(self, key: str) -> set[str]:
        return {member.decode() for member in self.client.smembers(key)}

    def places(self, id: str) -> list[str]:
        """Return the names of all sets and zsets that contain a run."""
        found = []
        for key, (kind, value, _) in self.dump().items():
            what = key.split("}:", 1)[1]
            if (
                kind in ("set", "zset")
                and id in value
                and what not in ("live", "parents")
                and not what.startswith("children")
            ):
                found.append(what)
        return found

    def _all_keys(self) -> list[bytes]:
        return list(self.client.scan_iter(f"{{{self.ns.name}:*}}*", count=10_000))

    def dump(self) -> dict[str, tuple[str, Any, bool]]:
        """Return the type and value of every key of the namespace, and whether the key has a TTL."""
        found = {}
        for key in self._all_keys():
            kind = self.client.type(key).decode()
            found[key.decode()] = (kind, self._value(kind, key), self.client.pttl(key) >= 0)
        return found

    def _value(self, kind: str, key: bytes) -> Any:
        match kind:
            case "hash":
                return {field.decode(): value for field, value in self.client.hgetall(key).items()}
            case "set":
                return {member.decode() for member in self.client.smembers(key)}
            case "zset":
                return {member.decode(): score for member, score in self.client.zrange(key, 0, -1, withscores=True)}
            case "list":
                return self.client.lrange(key, 0, -1)
            case "stream":
                return self.client.xrange(key)
            case _:
                return self.client.get(key)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Assert that the block changes nothing in the store."""
        before = self.dump()
        yield
        assert self.dump() == before

    def spoil(self, key: str) -> None:
        """Replace the value of a key by one of another type."""
        self.client.delete(key)
        self.client.set(key, "spoilt")
