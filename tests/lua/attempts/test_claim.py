"""claim: a claim number is answered once and repeated with the same answer; a removed or expired worker gets nothing; suspects go
to idle workers.
"""

from __future__ import annotations

import pytest

from coordinator.model.run import Counters
from coordinator.store.plans.workers import Claimed
from tests.lua.store import LEASE, NOW, ROUTES, Store, delta

STRIKES = 5  # the position of the strikes in the counters


def with_strikes(store: Store, id: str, strikes: int) -> None:
    """Give a run that many strikes, and move it to the queue in which such a run waits."""
    numbers = store.run(id)["counters"].split()
    numbers[STRIKES] = str(strikes)
    store.client.hset(store.keys.run(id), "counters", " ".join(numbers))
    route = store.run(id)["route"]
    if strikes >= 2 and store.client.zrem(store.keys.ready(route), id):
        store.client.zadd(store.keys.suspect(route), {id: int(numbers[10])})


def suspect(store: Store) -> str:
    id = store.enqueue()
    with_strikes(store, id, 2)
    return id


def test_lowest_scores_of_all_routes_are_claimed(store: Store) -> None:
    ids = []
    for route in (ROUTES[0], ROUTES[1], ROUTES[0], "default:other@0", ROUTES[1]):
        ids.append(store.enqueue(route=route))
        store.later(1)
    store.join()
    word, runs = store.claim(want=3)
    assert (word, [run.id for run in runs]) == ("ok", ids[:3])
    assert [run.id for run in store.claim(want=3)[1]] == ids[4:], "a line that was not named is left alone"
    assert store.members(store.keys.owned("w1")) == store.members(store.keys.live()) == {*ids[:3], ids[4]}


def test_claim_returns_what_an_attempt_needs_to_start(store: Store) -> None:
    id = store.enqueue(spec=b"\x00spec")
    store.later(7)
    run = store.take()
    assert run == Claimed(
        id, f"{NOW + 7}-1-w1", ROUTES[0], b"\x00spec", "", store.run(id)["counters"], "", None, False, none_left=True
    )
    fields = store.run(id)
    assert (fields["status"], fields["token"], fields["started"]) == ("running", run.token, str(NOW + 7))
    assert store.places(id) == ["owned:w1"]


def test_claim_says_whether_other_runs_wait(store: Store) -> None:
    store.enqueue()
    store.enqueue(route="default:other@0")
    store.join()
    (run,) = store.claim(want=1)[1]
    assert run.none_left, "the other run waits on a route that the claim does not name"
    for _ in range(3):
        store.enqueue()
    assert [run.none_left for run in store.claim(want=2)[1]] == [False, False]
    assert [run.none_left for run in store.claim(want=2)[1]] == [True]


def test_run_is_not_the_last_while_a_suspect_waits(store: Store) -> None:
    store.enqueue()
    suspect(store)
    store.join()
    (run,) = store.claim(want=1, alone=False)[1]
    assert not run.none_left


@pytest.mark.parametrize("alone", [False, True])
def test_claim_that_takes_no_suspect_rings_for_it_again(store: Store, alone: bool) -> None:
    """The worker may have taken the token of the bell. If it may take the suspect itself, no other worker has to hear of it."""
    suspect(store)
    store.join()
    bell = store.keys.suspect_bell(ROUTES[0])
    store.client.delete(bell)
    assert len(store.claim(want=1, alone=alone)[1]) == alone
    assert store.client.llen(bell) == (not alone)


def test_attempts_count_from_one_and_the_epoch_is_the_servers_time(store: Store) -> None:
    store.enqueue()
    for attempt in (1, 2, 3):
        store.later(10)
        run = store.take()
        counters = Counters.parse(run.counters)
        assert (counters.attempt, counters.epoch) == (attempt, store.now)
        store.release(run)


def test_epoch_grows_even_if_the_clock_went_back(store: Store) -> None:
    store.enqueue()
    seen = []
    for step in (0, -3_600_000, -1, 0):
        store.later(step)
        run = store.take()
        seen += [Counters.parse(run.counters).epoch, 0]
        store.release(run)
        seen[-1] = store.counters(run.id).epoch
    assert seen == sorted(set(seen)), "each is larger than the one before"


def test_claim_number_is_answered_once_and_repeated_with_the_same_answer(store: Store) -> None:
    for _ in range(4):
        store.enqueue()
    store.join()
    first = store.claim(want=2, number=1)
    with store.unchanged():
        again = store.claim(want=2, number=1)
    assert (again[0], sorted(again[1], key=lambda run: run.id)) == first


def test_repeated_answer_lists_only_runs_still_owned_with_that_token(store: Store) -> None:
    for _ in range(4):
        store.enqueue()
    store.join()
    _, runs = store.claim(want=3, number=1)
    store.complete(runs[0])
    store.release(runs[1])
    assert [run.token for run in store.claim(want=3, number=1)[1]] == [runs[2].token]
    store.claim(want=1, number=2)
    assert store.claim(want=3, number=2)[1][0].id == runs[1].id, "only what this number took"


def test_repeated_claim_includes_the_checkpoint(store: Store) -> None:
    store.save(store.running(), delta(1, count=2, state=b"s"))
    store.abandon("w1")
    store.join("w2")
    first = store.claim("w2", number=1)
    assert store.claim("w2", number=1) == first
    assert first[1][0].checkpoint is not None


def test_claim_with_a_lower_number_takes_nothing(store: Store) -> None:
    store.join()
    store.enqueue()
    assert store.claim(number=5)[0] == "ok"
    store.enqueue()
    with store.unchanged():
        assert store.claim(number=4) == ("old", [])


def test_claim_with_a_number_up_to_the_floor_takes_nothing(store: Store) -> None:
    store.join()
    store.beat(floor=3)
    store.enqueue()
    with store.unchanged():
        assert store.claim(number=3) == ("old", [])
    assert len(store.claim(number=4)[1]) == 1
    store.beat(floor=4)
    with store.unchanged():
        assert store.claim(number=4) == ("old", []), "given up: not even repeated"


def test_expired_worker_claims_nothing_until_a_heartbeat(store: Store) -> None:
    store.join()
    store.enqueue()
    store.later(LEASE)
    with store.unchanged():
        assert store.claim(number=1) == ("expired", [])
    assert store.beat() is not None
    assert len(store.claim(number=1)[1]) == 1


@pytest.mark.parametrize("how", ["never joined", "left", "condemned", "swept"])
def test_removed_worker_claims_nothing(store: Store, how: str) -> None:
    store.enqueue()
    store.enqueue()
    if how != "never joined":
        store.join()
    if how == "left":
        store.leave()
    if how == "condemned":
        store.claim(want=2)
        store.do_abandon_batch(1)
        assert store.client.zscore(store.keys.workers(), "w1") == 0
    if how == "swept":
        store.abandon()
    store.enqueue()
    with store.unchanged():
        assert store.claim() == ("gone", [])


def test_suspect_is_claimed_only_by_a_worker_that_reports_to_be_alone(store: Store) -> None:
    id = suspect(store)
    store.join()
    assert store.claim(alone=False) == ("ok", [])
    word, runs = store.claim(alone=True)
    assert (word, [run.id for run in runs], runs[0].suspect) == ("suspect", [id], True)
    assert store.claim(number=2)[0] == "suspect", "and a repetition says so too"


def test_suspect_is_never_given_to_a_worker_that_owns_a_run(store: Store) -> None:
    store.running()
    id = suspect(store)
    assert store.claim(alone=True) == ("ok", [])
    assert store.places(id) == [f"suspect:{ROUTES[0]}"]


def test_suspect_is_claimed_alone(store: Store) -> None:
    first, second = suspect(store), suspect(store)
    third = store.enqueue()
    store.join()
    word, runs = store.claim(alone=True)
    assert (word, [run.id for run in runs]) == ("suspect", [first])
    assert store.places(first) == ["owned:w1"]
    assert store.places(second) == [f"suspect:{ROUTES[0]}"]
    assert store.places(third) == [f"ready:{ROUTES[0]}"]


def test_suspect_waits_behind_older_runs(store: Store) -> None:
    older = store.enqueue()
    store.later(1)
    suspect(store)
    store.join()
    word, runs = store.claim(alone=True)
    assert (word, [run.id for run in runs]) == ("ok", [older])


@pytest.mark.parametrize("paused", ["queue:default", "kind:k"])
def test_paused_run_is_not_claimed(store: Store, paused: str) -> None:
    store.enqueue()
    suspect(store)
    store.join()
    store.client.sadd(store.keys.paused(), paused, "queue:else")
    assert store.claim(alone=True) == ("ok", [])
    store.client.delete(store.keys.paused())
    assert len(store.claim()[1]) == 1


@pytest.mark.parametrize("want", [0, -1])
def test_claim_of_zero_runs_takes_nothing(store: Store, want: int) -> None:
    store.enqueue()
    suspect(store)
    store.join()
    assert store.claim(want=want, alone=True) == ("ok", [])


UNREADABLE = ["missing", "wrong type", "no counters", "bad counters", "no spec", "no route", "running", "completed"]


@pytest.mark.parametrize("how", UNREADABLE)
def test_unreadable_entry_is_set_aside_and_other_runs_are_claimed(store: Store, how: str) -> None:
    before, bad, after = store.enqueue(), store.enqueue(), store.enqueue()
    run = store.keys.run(bad)
    match how:
        case "missing":
            store.client.delete(run)
        case "wrong type":
            store.spoil(run)
        case "no counters":
            store.client.hdel(run, "counters")
        case "bad counters":
            store.client.hset(run, "counters", "1 0 x 0 0 0 0 0 0 0 5 5")
        case "no spec":
            store.client.hdel(run, "spec")
        case "no route":
            store.client.hdel(run, "route")
        case status:
            store.client.hset(run, "status", status)
    store.join()
    word, runs = store.claim()
    assert (word, [run.id for run in runs]) == ("ok", [before, after])
    assert store.line(store.keys.aside()) == [f"queued:{bad}"]
    assert store.line(store.keys.ready(ROUTES[0])) == []
    assert store.members(store.keys.owned("w1")) == {before, after}


def test_ready_queue_of_another_type_does_not_stop_the_others(store: Store) -> None:
    id = store.enqueue(route=ROUTES[1])
    store.spoil(store.keys.ready(ROUTES[0]))
    assert store.take().id == id


@pytest.mark.parametrize("what", ["ckpt", "messages", "head"])
def test_unreadable_checkpoint_never_strands_its_run(store: Store, what: str) -> None:
    run = store.running()
    store.save(run, delta(1, count=1, state=b"s"))
    store.crash(run)
    neighbour = store.enqueue()
    if what == "head":
        store.client.hset(store.keys.ckpt(run.id), "head", "1 2 3")
    else:
        store.spoil(store.keys.ckpt(run.id) if what == "ckpt" else store.keys.messages(run.id, "1"))
    store.join("w2")
    _, runs = store.claim("w2")
    assert [again.id for again in runs] == [run.id, neighbour]
    assert runs[0].checkpoint == "paged"
    assert store.load(runs[0]) == "unreadable"
    assert store.members(store.keys.owned("w2")) == {run.id, neighbour}


def test_claim_ends_the_expiry(store: Store) -> None:
    id = store.enqueue(expires="5000")
    run = store.take()
    assert store.line(store.keys.deadlines()) == []
    store.release(run)
    store.later(6000)
    store.due()
    assert store.status(id) == "queued"


def test_bells_ring_where_runs_are_left(store: Store) -> None:
    for route in (ROUTES[0], ROUTES[0], ROUTES[1]):
        store.enqueue(route=route)
    suspect(store)
    bells = [
        store.keys.bell(ROUTES[0]),
        store.keys.bell(ROUTES[1]),
        store.keys.suspect_bell(ROUTES[0]),
        store.keys.bell(ROUTES[2]),
    ]
    store.join()
    store.client.delete(*bells)
    store.claim(want=1)
    assert [store.client.llen(bell) for bell in bells] == [1, 1, 1, 0]
    assert all(store.client.pttl(bell) > 0 for bell in bells[:3])
    store.claim()
    store.client.delete(*bells)
    store.claim()
    rung = [store.client.llen(bell) for bell in bells]
    assert rung == [0, 0, 1, 0], "who took nothing rings only for a suspect, which it may not take"


def test_small_checkpoint_is_included_and_a_large_one_is_paged(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, count=2, state=b"s" * 50, phases=(("phase:-:a#0", b"output"),)))
    store.release(run)
    run = store.take()
    fields, chunks = run.checkpoint
    assert dict(zip(fields[::2], fields[1::2], strict=True))[b"phase:-:a#0"] == b"output"
    assert chunks == [b"0", b"m0;m1;"]
    store.release(run)
    assert store.take(inline=50).checkpoint == "paged"


@pytest.mark.parametrize("what", ["state", "messages", "phases", "unfinished"])
def test_every_part_of_a_checkpoint_counts_for_its_size(store: Store, what: str) -> None:
    run = store.running()
    large = b"x" * 2000
    saves = {
        "state": delta(1, state=large),
        "messages": delta(1, count=500),
        "phases": delta(1, phases=(("phase:-:a#0", large),)),
        "unfinished": delta(1, unfinished=large),
    }
    store.save(run, saves[what])
    store.release(run)
    assert store.take(inline=1500).checkpoint == "paged"


def test_reply_has_a_size_limit(store: Store) -> None:
    for _ in range(3):
        store.enqueue()
    store.join()
    for run in store.claim()[1]:
        store.save(run, delta(1, state=b"x" * 1000))
        store.release(run)
    _, runs = store.claim(budget=2500)
    assert [run.checkpoint == "paged" for run in runs] == [False, False, True]


def test_specs_count_in_the_budget_of_a_claim(store: Store) -> None:
    ids = [store.enqueue(spec=b"x" * 6000) for _ in range(5)]
    store.join()
    taken = []
    for _ in range(3):
        word, runs = store.claim(budget=13_000)
        assert word == "ok"
        taken.append([run.id for run in runs])
    assert taken == [ids[:2], ids[2:4], ids[4:]]


def test_a_claim_takes_at_least_one_run_whatever_its_size(store: Store) -> None:
    ids = [store.enqueue(spec=b"x" * 9000) for _ in range(2)]
    store.join()
    for id in ids:
        assert [run.id for run in store.claim(budget=100)[1]] == [id]
    assert store.claim(budget=100) == ("ok", [])


def test_a_large_spec_behind_small_ones_waits_for_the_next_claim_if_it_does_not_fit(store: Store) -> None:
    small = [store.enqueue(spec=b"x" * 1000) for _ in range(3)]
    large, after = store.enqueue(spec=b"x" * 9000), store.enqueue()
    store.join()
    assert [run.id for run in store.claim(budget=10_000)[1]] == small
    assert store.places(large) == [f"ready:{ROUTES[0]}"]
    assert store.client.llen(store.keys.bell(ROUTES[0])) == 1, "other workers hear of the rest"
    assert [run.id for run in store.claim(budget=10_000)[1]] == [large, after]


def test_a_repeated_claim_answers_all_its_runs_whatever_their_size(store: Store) -> None:
    ids = [store.enqueue(spec=b"x" * 6000) for _ in range(3)]
    store.join()
    store.claim(number=1, budget=20_000)
    assert sorted(run.id for run in store.claim(number=1, budget=100)[1]) == sorted(ids)


def test_checkpoints_get_the_bytes_of_the_budget_that_specs_leave(store: Store) -> None:
    for _ in range(2):
        store.enqueue(spec=b"x" * 1000)
    store.join()
    for run in store.claim()[1]:
        store.save(run, delta(1, state=b"x" * 1000))
        store.release(run)
    _, runs = store.claim(budget=3500)
    assert [run.checkpoint == "paged" for run in runs] == [False, True]


def test_run_waits_on_the_route_of_its_checkpoint_schema(store: Store) -> None:
    run = store.running()
    store.save(run, delta(1, schema=2))
    store.crash(run)
    assert store.places(run.id) == [f"ready:{ROUTES[2]}"]
    store.join("w2")
    assert store.claim("w2", routes=ROUTES[:2]) == ("ok", [])
    assert store.claim("w2")[1][0].route == ROUTES[2]


def test_recovered_run_carries_its_cause_and_last_owner(store: Store) -> None:
    run = store.running()
    store.crash(run)
    again = store.take("w2")
    assert (again.cause, again.prev) == ("recover", "w1 c1")
    assert again == again._replace(id=run.id)
