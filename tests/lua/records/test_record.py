"""The scripts of the checkpoint store: which process may write, and what late and repeated calls can do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.store import Store
from workers.durable.records import record_plans as plans
from workers.durable.records.record import Checkpoint, Fenced, Meta
from workers.durable.records.record_delta import NOTHING, Acknowledged
from workers.durable.records.record_format import pack

LEASE = 30_000
A, B, C = (f"{name}-{LEASE}" for name in "abc")


class Records:
    """A method for each plan, for one run."""

    def __init__(self, store: Store) -> None:
        self.store, self.keys = store, store.keys

    def save(
        self, owner: str, *messages: Any, seq: int = 1, known: Acknowledged = NOTHING, id: str = "r1"
    ) -> Acknowledged:
        packed = pack(Checkpoint(Meta(id), messages))
        return self.store.do(plans.save(self.keys, owner, packed, known, seq=seq, ttl=3600, now=self.store.at))

    def explicit(self, owner: str, *messages: Any, seq: int) -> None:
        packed = pack(Checkpoint(Meta("r1"), messages, seq=seq))
        self.store.do(plans.save(self.keys, owner, packed, NOTHING, seq=0, ttl=3600, now=self.store.at))

    def delete(self, owner: str, seq: int = 1) -> None:
        self.store.do(plans.delete(self.keys, owner, "r1", seq=seq, now=self.store.at))

    def claim(self, owner: str, seen: str, nonce: str = "n") -> bool:
        return self.store.do(plans.claim(self.keys, owner, "r1", seen=seen, nonce=nonce, now=self.store.at))

    def keep(self, owner: str, mode: str = "renew") -> None:
        plan = plans.end_lease if mode == "leave" else plans.renew_lease
        self.store.do(plan(self.keys, owner, now=self.store.at))

    def interrupted(self, owner: str) -> dict[str, str]:
        return self.store.do(plans.list_interrupted(self.keys, owner, now=self.store.at))

    def messages(self) -> list[Any] | None:
        found = self.store.do(plans.load(self.keys, "r1"))
        return None if found is None else list(found.checkpoint.messages)

    def lapse(self) -> None:
        """Let every lease expire."""
        self.store.later(LEASE)


@pytest.fixture
def records(store: Store) -> Records:
    return Records(store)


def test_lease_counts_from_the_last_save_or_renewal(records: Records, store: Store) -> None:
    records.save(A, "a")
    store.later(LEASE - 1)
    assert records.interrupted(B) == {}
    records.keep(A)
    store.later(LEASE - 1)
    assert records.interrupted(B) == {}
    store.later(1)
    assert records.interrupted(B) == {"r1": A}


def test_previous_owner_stays_fenced_when_the_new_owner_is_gone(records: Records) -> None:
    records.save(A, "a")
    records.lapse()
    assert records.claim(B, seen=A)
    records.lapse()
    with pytest.raises(Fenced):
        records.save(A, "stale", seq=9)
    with pytest.raises(Fenced):
        records.delete(A, seq=9)
    assert records.messages() == ["a"]


def test_owner_whose_record_was_taken_by_a_save_stays_fenced(records: Records) -> None:
    records.save(A, "a")
    records.lapse()
    known = records.save(B, "b", seq=2)
    records.save(B, "b", "c", seq=3, known=known)
    records.save(B, "whole again", seq=4)
    records.lapse()
    with pytest.raises(Fenced):
        records.save(A, "stale", seq=9)


def test_previous_owner_cannot_restore_a_run_after_its_end(records: Records) -> None:
    records.save(A, "a")
    records.lapse()
    assert records.claim(B, seen=A)
    records.delete(B, seq=2)
    with pytest.raises(Fenced):
        records.save(A, "late", seq=9)
    assert records.messages() is None
    records.save(C, "a new life", seq=10)
    assert records.messages() == ["a new life"]


def test_owner_whose_record_was_deleted_cannot_restore_it(records: Records) -> None:
    records.save(A, "a")
    records.lapse()
    records.delete(B, seq=2)
    with pytest.raises(Fenced):
        records.save(A, "late", seq=9)


def test_run_can_be_claimed_back(records: Records) -> None:
    records.save(A, "a")
    records.lapse()
    assert records.claim(B, seen=A)
    records.lapse()
    assert records.claim(A, seen=B, nonce="m")
    records.save(A, "a", "b", seq=2)
    assert records.messages() == ["a", "b"]
    records.delete(A, seq=3)
    records.save(A, "a new life", seq=4)
    assert records.messages() == ["a new life"]


def test_claim_of_a_record_that_has_changed_gets_nothing(records: Records) -> None:
    records.save(A, "a")
    records.lapse()
    assert records.claim(B, seen=A)
    records.lapse()
    assert not records.claim(C, seen=A), "another had it meanwhile"
    assert records.claim(C, seen=B)


def test_claim_of_a_missing_record_gets_nothing(records: Records) -> None:
    assert not records.claim(B, seen=A)
    records.save(A, "a")
    records.delete(A, seq=2)
    records.lapse()
    assert not records.claim(B, seen=A)


def test_delta_is_applied_only_to_the_record_it_was_made_for(records: Records) -> None:
    one = records.save(A, "a", seq=1)
    two = records.save(A, "a", "b", seq=2, known=one)
    records.save(A, "a", "b", "c", seq=3, known=one)  # its base is that of `one`: a different chunk at the same index
    records.save(A, "a", "b", "c", "d", seq=4, known=two)
    assert records.messages() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("late", [1, 2])
def test_save_sent_before_the_end_changes_nothing_after_it(records: Records, late: int) -> None:
    records.save(A, "a", seq=1)
    records.delete(A, seq=2)
    records.explicit(A, "late", seq=late)
    assert records.messages() is None


def test_end_that_arrives_before_its_first_save_still_ends_the_run(records: Records) -> None:
    records.delete(A, seq=2)
    records.explicit(A, "late", seq=1)
    assert records.messages() is None


def test_late_end_does_not_shorten_the_tombstone_of_another(records: Records) -> None:
    records.save(A, "a", seq=1)
    records.delete(A, seq=5)
    records.delete(A, seq=2)
    records.explicit(A, "late", seq=4)
    assert records.messages() is None


def test_tombstone_does_not_fence_a_process_that_never_owned_the_run(records: Records) -> None:
    records.save(A, "a", seq=1)
    records.delete(A, seq=2)
    records.save(B, "b", seq=3)
    assert records.messages() == ["b"]
    assert "gone" not in records.store.dump()[records.keys.record("r1")][1]


def test_index_contains_exactly_the_existing_records(records: Records, store: Store) -> None:
    records.save(A, "a")
    records.save(A, "a", id="r2")
    assert store.line(records.keys.records()) == ["r1", "r2"]
    records.delete(A, seq=2)
    assert store.line(records.keys.records()) == ["r2"]
    store.later(3_600_000)
    records.save(A, "a", id="r3")
    assert store.line(records.keys.records()) == ["r3"], "a save forgets those whose time is over"


def test_owners_that_are_long_gone_are_forgotten(records: Records, store: Store) -> None:
    records.keep(A)
    store.later(LEASE + 60_000)
    records.keep(B)
    assert store.line(records.keys.record_owners()) == [B]
    records.keep(B, "leave")
    assert store.line(records.keys.record_owners()) == []


def test_only_the_last_few_owners_are_remembered(records: Records) -> None:
    records.save(A, "a")
    before = A
    for number in range(20):
        records.lapse()
        owner = f"x{number}-{LEASE}"
        assert records.claim(owner, seen=before, nonce=str(number))
        before = owner
    assert len(records.store.dump()[records.keys.record("r1")][1]["past"].split()) == 8
