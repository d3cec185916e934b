"""A cancel and another call at the same moment, in every order: the run has the one ending of the design and is in one place.

The cancel may come before the other call, after it, or both. Calls that arrive late afterwards change nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from coordinator.store.plans.workers import Claimed
from tests.lua.store import LEASE, Store

Deed = Callable[[Store, Claimed], object]

OTHERS: dict[str, Deed] = {
    "complete": lambda store, run: store.complete(run),
    "fail": lambda store, run: store.fail(run),
    "retry": lambda store, run: store.retry(run),
    "release": lambda store, run: store.release(run),
    "unasked": lambda store, run: store.release(run, mode="unasked"),
    "reject": lambda store, run: store.reject(run),
    "abandon": lambda store, run: store.crash(run),
    "recover": lambda store, run: store.recover(),
    "due": lambda store, run: store.due(),
}
# complete and fail win if they arrive before the cancel request; every other call ends a requested run as cancelled
WINS = {"complete": "completed", "fail": "failed"}


def running(store: Store, other: str) -> Claimed:
    run = store.running()
    if other == "recover":  # the lease is over, and so is the hold that starts with the first judgement
        store.tick_for(3 * LEASE)
    return run


def settle(store: Store, run: Claimed) -> None:
    """Let the grace pass, and let a coordinator do its work."""
    store.later(20_000)
    store.due()


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "order", ["cancel first", "cancel second", "cancel around", "cancel twice first", "other twice"]
)
def test_run_has_exactly_the_ending_that_the_design_prescribes(store: Store, other: str, order: str) -> None:
    run = running(store, other)

    def cancel(operation: str = "o1") -> None:
        store.cancel(run.id, operation, life=1)

    def act() -> None:
        OTHERS[other](store, run)

    match order:
        case "cancel first":
            deeds = [cancel, act]
        case "cancel second":
            deeds = [act, cancel]
        case "cancel around":
            deeds = [cancel, act, lambda: cancel("o2")]
        case "cancel twice first":
            deeds = [cancel, lambda: cancel("o2"), act]
        case _:
            deeds = [act, cancel, act]
    endings = []
    for deed in deeds:
        deed()
        endings.append(store.status(run.id))
    settle(store, run)
    expected = WINS.get(other, "cancelled") if order in ("cancel second", "other twice") else "cancelled"
    assert (store.status(run.id), store.places(run.id)) == (expected, [f"ended:{expected}"])
    ended = [status for status in endings if status in ("completed", "failed", "cancelled", "dead")]
    assert set(ended) <= {expected}, "an ending is never replaced by another"
    assert store.line(store.keys.deadlines()) == []
    assert store.members(store.keys.owned("w1")) == store.members(store.keys.live()) == set()


@pytest.mark.parametrize("other", [name for name in OTHERS if name != "due"])
def test_late_calls_change_nothing(store: Store, other: str) -> None:
    run = running(store, other)
    store.cancel(run.id, life=1)
    OTHERS[other](store, run)
    settle(store, run)
    with store.unchanged():
        for late in ("complete", "fail", "retry", "release", "reject"):
            OTHERS[late](store, run)
        store.cancel(run.id, "o9", life=1)


TRIOS = [trio for pair in (("complete", "recover"), ("release", "abandon"), ("retry", "abandon"), ("complete", "due"),
         ("fail", "release")) for trio in permutations(("cancel", *pair))]  # fmt: skip


@pytest.mark.parametrize("trio", TRIOS, ids=" ".join)
def test_first_of_three_concurrent_endings_wins(store: Store, trio: tuple[str, ...]) -> None:
    run = running(store, "recover" if "recover" in trio else "")
    for deed in trio:
        if deed == "cancel":
            store.cancel(run.id, life=1)
        else:
            if deed == "due":
                store.later(10_001)
            OTHERS[deed](store, run)
    settle(store, run)
    expected = "cancelled"
    for winner in ("complete", "fail"):  # the owner still owned the run
        before = {"cancel", "recover", "abandon", "release", "retry"}
        if winner in trio and not before & set(trio[: trio.index(winner)]):
            expected = WINS[winner]
    assert (store.status(run.id), store.places(run.id)) == (expected, [f"ended:{expected}"])
