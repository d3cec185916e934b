"""The promises on a Sentinel group and on a Cluster, with failovers and a resharding while runs are working."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coordinator import Client, Handle, Status
from tests.clusters import Cluster, Group
from tests.e2e.conftest import MakeStage
from tests.e2e.processes import Stage, stop, wait_for_start
from tests.servers import Kind, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("a topology of their own")

RUNS, STEPS = 100, 30
P = 4


def wait_for_endings(client: Client, handles: Sequence[Handle[Any]], timeout: float = 100) -> Counter[Status]:
    return Counter(handle.wait(timeout) for handle in client.wait(handles, timeout))


def start_runs(stage: Stage, client: Client, durability: str = "replicated(1)") -> list[Handle[Any]]:
    """Start a coordinator and two worker processes, and wait until all runs have started."""
    stage.run("coordinator", "init", "--partitions", str(P), "--durability", durability)
    stage.coordinator()
    stage.fleet(2, lease=5, concurrency=RUNS)
    handles = client.enqueue_many([("steps", {"total": STEPS, "seconds": 0.3})] * RUNS)
    wait_for_start(stage, RUNS)
    return handles


def seconds_until_all_moved(stage: Stage, moment: float, handles: Sequence[Handle[Any]]) -> float:
    """Return the seconds from the given time until each run has done another step (or has ended)."""
    first: dict[str, float] = {}
    ended: set[str] = set()
    for event in stage.events():
        if event.at > moment + 1.0 and event.what in (
            "step",
            "end",
        ):  # The step that was in progress at that moment came to its end.
            first.setdefault(event.run, event.at)
        elif event.what == "end":
            ended.add(event.run)  # On a busy machine the first runs end while the last ones start.
    assert {handle.id for handle in handles} <= set(first) | ended, "a run did not move again"
    return max(first.values(), default=moment) - moment


def assert_nothing_lost(stage: Stage, client: Client, handles: Sequence[Handle[Any]]) -> None:
    """Check that each run has one ending, with all its steps and no strike."""
    assert wait_for_endings(client, handles) == {Status.COMPLETED: RUNS}
    assert {handle.result() for handle in handles} == {STEPS}
    counters = [handle.view().counters for handle in handles]
    assert {(c.strikes, c.failures) for c in counters} == {(0, 0)}
    steps = stage.steps()
    for handle in handles:
        assert {event.number for event in steps[handle.id]} == set(range(STEPS)), "a step is missing"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_sentinel_failover_loses_no_run_and_gives_no_strike(
    make_stage: MakeStage, start_group: Callable[..., Group], kind: Kind, record_property: Callable[[str, object], None]
) -> None:
    group = start_group(kind)
    stage = make_stage(group.url)
    with Client(stage.url, stage.namespace, timeout=50) as client:
        handles = start_runs(stage, client)
        old = group.master
        killed = time.monotonic()
        old.kill()
        more = client.enqueue("steps", {"total": 1})  # This run starts while there is no master.
        wait_until(lambda: group.failed_over(old), "the sentinels have chosen another master", timeout=60)
        elected = time.monotonic()
        assert_nothing_lost(stage, client, handles)
        assert more.wait(30) is Status.COMPLETED
        moved = seconds_until_all_moved(stage, killed, handles)
    record_property("seconds until another master", round(elected - killed, 1))
    record_property("seconds until every run moved", round(moved, 1))
    print(f"another master after {elected - killed:.1f} s, every run has moved after {moved:.1f} s")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
def test_paused_master_is_replaced_and_its_late_answers_are_ignored(
    make_stage: MakeStage, start_group: Callable[..., Group], start_cluster: Callable[..., Cluster], topology: str
) -> None:
    """Pause the master with SIGSTOP: its connections stay open, and no client is notified.

    When it continues, it still believes for a moment that it is the master.
    """
    made: Group | Cluster = start_group() if topology == "sentinel" else start_cluster()
    stage = make_stage(made.url)
    with Client(stage.url, stage.namespace, timeout=50) as client:
        handles = start_runs(stage, client)
        tag = f"{{{stage.namespace}:0}}"
        old: Server = made.master if isinstance(made, Group) else made.master_of(tag)
        old.pause()
        stopped = time.monotonic()
        try:
            wait_until(lambda: made.replaced(tag, old), "another node is the master", timeout=60)
            elected = time.monotonic()
            all_moved = wait_until(lambda: _all_moved(stage, elected, handles), "every run has moved", timeout=80)
        finally:
            old.resume()
        assert_nothing_lost(stage, client, handles)
    print(f"another master after {elected - stopped:.1f} s, every run has moved after {all_moved - stopped:.1f} s")


def _all_moved(stage: Stage, moment: float, handles: Sequence[Handle[Any]]) -> float:
    """Return when each run had done a step since the given time or had ended, or 0 while one has not."""
    last = {event.run: event.at for event in stage.events()}
    ended = {event.run for event in stage.events("end")}
    waiting = [handle.id for handle in handles if handle.id not in ended and last.get(handle.id, 0.0) <= moment]
    return 0.0 if waiting else time.monotonic()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_cluster_loses_no_run_through_a_kill_a_failover_and_a_resharding(
    make_stage: MakeStage, start_cluster: Callable[..., Cluster], kind: Kind
) -> None:
    cluster = start_cluster(kind)
    stage = make_stage(cluster.url)
    with Client(stage.url, stage.namespace, timeout=50) as client:
        handles = start_runs(stage, client)
        tags = [f"{{{stage.namespace}:{partition}}}" for partition in range(P)]
        cluster.reshard(tags[1])
        cluster.hand_over(tags[2])
        # Without this, no replica could take over.
        wait_until(cluster.whole, "every master has its replica again", timeout=60)
        victim = cluster.master_of(tags[0])
        victim.kill()  # The failover is forced with whatever the replica has received.
        wait_until(lambda: cluster.replaced(tags[0], victim), "a replica has taken over", timeout=60)
        victim.restart()  # Without a replica, the server confirms nothing.
        assert_nothing_lost(stage, client, handles)


@pytest.mark.timeout(240)
def test_stopped_master_does_not_affect_other_partitions(
    make_stage: MakeStage, start_cluster: Callable[..., Cluster]
) -> None:
    """Stop one master of three, which has no replica.

    Claims, saves and endings in the other partitions continue, and new runs are accepted.
    """
    cluster = start_cluster(replicas=0)
    stage = make_stage(cluster.url)
    with Client(stage.url, stage.namespace, timeout=50) as client:
        handles = start_runs(stage, client, "local")
        zero = cluster.master_of(f"{{{stage.namespace}:0}}")
        tags = [f"{{{stage.namespace}:{partition}}}" for partition in range(P)]
        served = {tag: cluster.master_of(tag) for tag in tags}
        # This master stores the settings of the namespace. Running processes do not need to read them again.
        victim = zero
        away = [partition for partition, tag in enumerate(tags) if served[tag] is victim]
        assert away
        assert len(away) < P
        others = [handle for handle in handles if int(handle.id[-2:]) not in away]
        victim.kill()
        killed = time.monotonic()
        fresh = client.enqueue_many([("steps", {"total": 3})] * 20)
        assert {int(handle.id[-2:]) for handle in fresh}.isdisjoint(away)
        assert Counter(handle.wait(60) for handle in client.wait(fresh, 60)) == {Status.COMPLETED: 20}
        assert Counter(handle.wait(60) for handle in client.wait(others, 60)) == {Status.COMPLETED: len(others)}
        assert {handle.result() for handle in others} == {STEPS}
        gaps = _longest_pauses(stage, {handle.id for handle in others}, killed)
        print(f"longest pause between two steps of a run elsewhere: {max(gaps):.2f} s (a step takes 0.3 s)")
        assert max(gaps) < 5.0, "a run of another partition was held up"
        victim.restart()
        assert_nothing_lost(stage, client, handles)
    assert all(stop(process) in (0, 1) for process in stage.started[1:])


def _longest_pauses(stage: Stage, runs: set[str], since: float) -> list[float]:
    pauses = [0.0]
    for run, steps in stage.steps().items():
        times = [event.at for event in steps if run in runs]
        pauses += [b - a for a, b in itertools.pairwise(times) if b > since]
    return pauses
