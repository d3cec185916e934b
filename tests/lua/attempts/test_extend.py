"""extend, and the used time of a run: it includes all attempts, excludes waiting, and counts nothing twice."""

from __future__ import annotations

from tests.lua.store import LEASE, Store, delta


def spent(store: Store, id: str) -> dict[str, int]:
    names = ("used", "idle", "progress", "extensions", "extended")
    return dict(zip(names, map(int, store.run(id)["spent"].split()), strict=True))


def test_extension_counts_once_however_often_it_is_sent(store: Store) -> None:
    run = store.running()
    assert store.extend(run, 1, 60) == "ok"
    with store.unchanged():
        assert store.extend(run, 1, 60) == "ok"
    assert store.extend(run, 2, 30) == "ok"
    with store.unchanged():
        assert store.extend(run, 1, 60) == "ok", "a late one that was overtaken"
    assert spent(store, run.id) == {"used": 0, "idle": 0, "progress": 0, "extensions": 2, "extended": 90_000}


def test_only_the_owner_extends(store: Store) -> None:
    run = store.running()
    store.release(run)
    with store.unchanged():
        assert store.extend(run) == "fenced"
    again = store.take("w2")
    with store.unchanged():
        assert store.extend(run) == "fenced"
    assert store.extend(again) == "ok"


def test_unreadable_field_counts_as_zero(store: Store) -> None:
    run = store.running()
    store.client.hset(store.keys.run(run.id), "spent", "spoilt")
    assert store.extend(run, 1, 60) == "ok"
    store.later(1000)
    assert store.release(run) == "ok"
    assert spent(store, run.id)["used"] == 1000


def test_next_owner_receives_used_and_extended_time(store: Store) -> None:
    run = store.running()
    assert (run.spent, run.killed) == ("", b"")
    store.extend(run, 1, 60)
    store.later(4000)
    store.release(run)
    store.later(3000)  # waiting does not count
    store.join("w2")
    _, (again,) = store.claim("w2", number=1)
    assert again.spent == "4000 0 0 1 60000"
    assert store.claim("w2", number=1)[1][0].spent == again.spent, "the repeated answer too"


def test_every_way_back_to_the_queue_adds_the_time_of_the_attempt_once(store: Store) -> None:
    run = store.running()
    store.later(1000)
    assert store.release(run) == "ok"
    assert store.release(run) == "ok"
    run = store.take()
    store.later(200)
    assert [store.retry(run, 1), store.retry(run, 1)] == ["ok", "ok"]
    store.later(1000)
    store.due()
    run = store.take()
    store.later(30)
    assert [store.reject(run), store.reject(run)] == ["delayed", "delayed"]
    assert spent(store, run.id)["used"] == 1230


def test_time_for_which_a_run_waits_does_not_count(store: Store) -> None:
    run = store.running()
    store.later(1000)
    assert [store.suspend(run, go=0), store.suspend(run, go=0)] == ["waiting", "waiting"]
    store.later(86_400_000)
    store.send(run.id, "go")
    store.join("w2")
    run = store.take("w2")
    assert run.spent.split()[0] == "1000"
    store.later(30)
    assert store.release(run) == "ok"
    assert spent(store, run.id)["used"] == 1030


def test_crashed_attempt_counts_until_the_last_heartbeat_of_its_worker(store: Store) -> None:
    run = store.running()
    store.tick_for(4000)
    store.beat()
    store.tick_for(LEASE + 1000)
    assert store.recover().queued == 1
    assert spent(store, run.id)["used"] == 4000


def test_runs_of_an_abandoned_child_count_until_its_last_heartbeat_in_every_batch(store: Store) -> None:
    runs = [store.running() for _ in range(5)]
    store.later(4000)
    store.beat()
    store.later(2000)
    assert store.abandon(batch=2).queued == 5
    assert {spent(store, run.id)["used"] for run in runs} == {4000}


def test_attempt_started_after_the_last_heartbeat_counts_as_zero(store: Store) -> None:
    store.join()
    store.later(2000)
    id = store.enqueue()
    store.claim()
    store.later(1000)
    store.abandon()
    assert spent(store, id)["used"] == 0


def test_progress_restarts_the_idle_time(store: Store) -> None:
    run = store.running()
    store.later(5000)
    store.release(run)
    run = store.take()
    store.later(1000)
    store.save(run, delta(1, state=b"s"))
    store.later(300)
    store.retry(run, 0)
    assert spent(store, run.id) == {"used": 6300, "idle": 300, "progress": 1, "extensions": 0, "extended": 0}
    store.due()
    run = store.take()
    store.later(50)
    store.save(run, delta(2))  # nothing new
    store.later(50)
    store.retry(run, 0)
    assert spent(store, run.id)["idle"] == 400


def test_release_while_stopping_resets_the_time_without_progress(store: Store) -> None:
    """Unsaved work is repeated from its beginning. With less time for it than before, a deploy would kill the run."""
    run = store.running()
    store.later(5000)
    assert store.release(run) == "ok"
    assert spent(store, run.id) == {"used": 5000, "idle": 0, "progress": 0, "extensions": 0, "extended": 0}
    run = store.take()
    store.later(5000)
    assert store.release(run, mode="unasked") == "delayed"
    assert spent(store, run.id)["idle"] == 5000, "nobody asked it to stop"


def test_revived_run_starts_with_no_used_time(store: Store) -> None:
    run = store.running()
    store.extend(run)
    store.later(1000)
    store.fail(run)
    store.revive(run.id)
    assert store.take().spent == ""
