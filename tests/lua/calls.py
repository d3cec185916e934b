"""One valid call of each script, with the data that it needs.

The calls are the same in every namespace, so that answers can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.model.limits import CHILDREN_LOOK_MS
from coordinator.model.policies.budget import Amount
from coordinator.model.run_id import id_from
from coordinator.store import scripts
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.plans import clients as client_plans
from coordinator.store.plans import coordinators as coordinator_plans
from coordinator.store.plans import doctor as doctor_plans
from coordinator.store.plans import groups as group_plans
from coordinator.store.plans import namespace as namespace_plans
from coordinator.store.plans import output as output_plans
from coordinator.store.plans import trees as tree_plans
from coordinator.store.plans import workers as worker_plans
from coordinator.store.plans.clients import NewRun
from coordinator.store.scripts import SCRIPTS
from tests.lua import fleet_calls, graph_calls, rate_calls, record_calls, schedule_calls, session_calls
from tests.lua.store import LEASE, NOW, ROUTES, Store, delta

ONE, TWO = id_from(NOW, 1, 0), id_from(NOW, 2, 0)

Prepare = Callable[[Store], Any]


def _running(store: Store) -> Any:
    return store.running(id=ONE)


def enqueue(store: Store) -> Any:
    return client_plans.enqueue(store.ns, [NewRun(ONE, ROUTES[0], b"spec", once="key", digest="d")], now=store.at)


def view(store: Store) -> Any:
    return client_plans.view(store.keys, _running(store).id)


def wait(store: Store) -> Any:
    return client_plans.wait(store.keys, _running(store).id, "c1")


def limit(store: Store) -> Any:
    return group_plans.set_limit(store.keys, "k", "acme", "2", "o1")


def sweep(store: Store) -> Any:
    store.enqueue(ONE, group="acme")
    store.enqueue(TWO, group="acme")
    store.limit(1)
    return group_plans.sweep(store.keys, now=store.at)


def join(store: Store) -> Any:
    return worker_plans.join(
        store.keys, "b1", worker_plans.WorkerRecord("w1", LEASE, "h", 1, "s", "f", "c", 1, ROUTES), now=store.at
    )


def leave(store: Store) -> Any:
    store.join()
    return worker_plans.leave(store.keys, "w1")


def heartbeat(store: Store) -> Any:
    run = _running(store)
    return worker_plans.heartbeat(
        store.keys, "w1", lease_ms=LEASE, floor=1, held=[(run.id, run.token), (TWO, "1-1-w1")], now=store.at
    )


def claim(store: Store) -> Any:
    store.join()
    store.enqueue(ONE)
    store.enqueue(TWO)
    return worker_plans.claim(store.keys, "w1", number=1, want=1, routes=ROUTES, alone=False, now=store.at)


def load(store: Store) -> Any:
    run = _running(store)
    store.save(run, delta(1, count=2, state=b"s"))
    return worker_plans.load(store.keys, run.id, run.token)


def spend(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.spend(store.keys, run.id, run.token, Amount(5, 10, 1))


def checkpoint(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.checkpoint(store.keys, run.id, run.token, delta(1, count=2, state=b"s"), now=store.at)


def complete(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.complete(store.keys, run.id, run.token, b"result", now=store.at)


def emit(store: Store) -> Any:
    run = _running(store)
    output = attempt_plans.Output(1, 0, 0, (b"e\x01", b"n\x02"))
    return attempt_plans.emit(store.keys.at, [(run.id, run.token, output)], now=store.at)


def listen(store: Store) -> Any:
    return output_plans.listen(store.keys, _running(store).id)


def transcript(store: Store) -> Any:
    run = _running(store)
    store.save(run, delta(1, count=2))
    return output_plans.read_transcript(store.keys, run.id, 0, 1000)


def interrupt(store: Store) -> Any:
    return output_plans.interrupt(store.keys, "c1")


def fail(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.fail(store.keys, run.id, run.token, b"error", delta(1, count=1).wire(), now=store.at)


def retry(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.retry(
        store.keys, run.id, run.token, delay=1, error=b"error", delta=delta(1, count=1).wire(), now=store.at
    )


def release(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.release(
        store.keys, run.id, run.token, mode="unasked", delta=delta(1, count=1).wire(), now=store.at
    )


def join_children(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.join_children(store.keys, run.id, run.token, order=1, base=TWO, count=2)


def collect(store: Store) -> Any:
    run = _running(store)
    store.do(attempt_plans.join_children(store.keys, run.id, run.token, order=1, base=TWO, count=2))
    return attempt_plans.collect(store.keys, run.id, run.token, base=TWO, by="index", start=0)


def suspend(store: Store) -> Any:
    run = _running(store)
    condition = attempt_plans.Condition(store.now + 1000, {"t": 0})
    return attempt_plans.suspend(
        store.keys, run.id, run.token, condition=condition, delta=delta(1, count=1).wire(), now=store.at
    )


def receive(store: Store) -> Any:
    run = _running(store)
    store.send(run.id)
    return attempt_plans.receive(store.keys, run.id, run.token, attempt_plans.Condition(None, {"t": 0}), now=store.at)


def send(store: Store) -> Any:
    run = _running(store)
    return client_plans.send(store.keys, run.id, topic="t", payload=b"p", operation="s1", key="k", now=store.at)


def reject(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.reject(store.keys, run.id, run.token, proven=True, error=b"error", now=store.at)


def cancel(store: Store) -> Any:
    return client_plans.cancel(store.keys, _running(store).id, operation="o1", grace=10, now=store.at)


def revive(store: Store) -> Any:
    run = _running(store)
    store.fail(run)
    return client_plans.revive(store.keys, run.id, operation="r1", now=store.at)


def judge(store: Store) -> Any:
    store.join()
    return coordinator_plans.judge(store.keys, "c1", tick=1, now=store.at)


def recover(store: Store) -> Any:
    for id in (ONE, TWO):
        store.running(id=id)
    store.client.hset(store.keys.worker("w1"), "condemned", "struck")
    store.lock("recovery", "t1")
    return coordinator_plans.recover(
        store.keys, "w1", lock="recovery", token="t1", tick=1, batch=1, jitter=0.5, now=store.at
    )


def abandon(store: Store) -> Any:
    _running(store)
    return coordinator_plans.abandon(store.keys, "w1", now=store.at)


def due(store: Store) -> Any:
    store.enqueue(ONE, due="+1")
    store.later(1)
    return coordinator_plans.due(store.keys, now=store.at)


def ring(store: Store) -> Any:
    store.enqueue(ONE)
    return coordinator_plans.ring(store.keys)


def lock(store: Store) -> Any:
    return coordinator_plans.lock(store.keys, "recovery", "t1", 60)


def take_endings(store: Store) -> Any:
    store.do(coordinator_plans.take_endings(store.keys, most=10, spans=True, counts=True))
    store.cancel(store.enqueue(ONE))
    return coordinator_plans.take_endings(store.keys, most=10, spans=True, counts=False)


def trim(store: Store) -> Any:
    store.complete(_running(store))
    store.later(86_400_000)
    return coordinator_plans.trim(store.keys, now=store.at)


def trim_children(store: Store) -> Any:
    store.cancel(store.enqueue(TWO, parent=ONE, retention="0"))
    store.client.delete(store.keys.run(TWO))
    store.later(CHILDREN_LOOK_MS)
    return coordinator_plans.trim_children(store.ns, store.keys, most=10, now=store.at)


def note(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.note(store.keys, run.id, run.token, b"note")


def extend(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.extend(store.keys, run.id, run.token, number=1, seconds=60)


def kill(store: Store) -> Any:
    run = _running(store)
    return attempt_plans.kill(store.keys, run.id, run.token, b"why")


def discard(store: Store) -> Any:
    run = _running(store)
    store.fail(run)
    return client_plans.discard(store.keys, run.id, 1)


def cap(store: Store) -> Any:
    store.fail(_running(store))
    return coordinator_plans.cap(store.keys, "failed", keep=0, batch=10)


def block_children(store: Store) -> Any:
    return tree_plans.block_children(store.ns, [tree_plans.CancelledNode(ONE, 1)])


def pause(store: Store) -> Any:
    return client_plans.pause(store.keys, "queue:default", "o1")


def unpause(store: Store) -> Any:
    store.enqueue(ONE)
    store.do(client_plans.pause(store.keys, "kind:k", "o1"))
    return client_plans.unpause(store.keys, "kind:k", "o2")


def examine(store: Store) -> Any:
    store.enqueue(ONE)
    store.client.delete(store.keys.ready(ROUTES[0]))
    return doctor_plans.examine(store.keys, [ONE])


def examine_entries(store: Store) -> Any:
    store.client.sadd(store.keys.live(), ONE)
    return doctor_plans.examine_entries(store.keys, "live", "", [ONE], now=store.at)


def examine_keys(store: Store) -> Any:
    store.client.hset(store.keys.ckpt(ONE), "head", "1")
    return doctor_plans.examine_keys(store.keys, "ckpt", "hash", [ONE])


def repair_run(store: Store) -> Any:
    store.enqueue(ONE)
    store.client.delete(store.keys.ready(ROUTES[0]))
    return doctor_plans.repair_runs(store.keys, [(ONE, "lineless")], now=store.at)


def repair_entry(store: Store) -> Any:
    store.client.sadd(store.keys.live(), ONE)
    return doctor_plans.repair_entries(store.keys, "live", "", [(ONE, "runless")], now=store.at)


def repair_key(store: Store) -> Any:
    store.client.hset(store.keys.ckpt(ONE), "head", "1")
    return doctor_plans.repair_keys(store.keys, "ckpt", "hash", [(ONE, "leaked")])


def repair_type(store: Store) -> Any:
    store.spoil(store.keys.live())
    return doctor_plans.repair_type(store.keys, store.keys.live(), "live", "set")


def confirm(store: Store) -> Any:
    return _one(scripts.CONFIRM.call(store.keys.at))


def _one(request: Any) -> Any:
    return (yield request)


def create_namespace(store: Store) -> Any:
    store.client.delete(store.keys.namespace())
    return namespace_plans.create(store.ns.name, birth="b3", clock="test")


# The functions above that are named like a script.
PREPARE: dict[str, Prepare] = {script.name: globals()[script.name] for script in SCRIPTS if script.name in globals()}
PREPARE |= schedule_calls.PREPARE | fleet_calls.PREPARE | rate_calls.PREPARE
# The scripts of stand-alone checkpoints, graphs and sessions have tests of their own for most faults.
PREPARE_EVERY: dict[str, Prepare] = PREPARE | record_calls.PREPARE | graph_calls.PREPARE | session_calls.PREPARE

# A repeated call of these scripts answers differently, because it reports what is left to do.
ANSWERS_DIFFER_WHEN_REPEATED = {
    "recover", "abandon", "due", "sweep", "trim", "trim_children", "cap", "take_endings", "repair_run", "repair_entry",
    "repair_key", "repair_type", "finish",
}  # fmt: skip
