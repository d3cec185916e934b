"""The doctor finds nothing in a namespace that only our scripts have written, and repairs damage that is done to it."""

from __future__ import annotations

import os
import random
from contextlib import closing

import pytest

from coordinator.doctor.examiner import examine
from coordinator.doctor.report import DoctorReport
from tests.lua.calls import PREPARE
from tests.lua.history import History
from tests.lua.store import Store
from tests.servers import Server

DEEPER = int(os.environ.get("RUNS_TEST_DEPTH", "1"))


def examine_history(history: History, repair: bool = False) -> DoctorReport:
    return history.store.do(examine(history.store.ns, repair=repair, now=history.store.at))


def sentences_of(report: DoctorReport) -> list[str]:
    """Return the findings, without one false alarm of the tests.

    The test clock jumps by days and trims lists, while the TTLs of the runs follow the real clock. That is not damage.
    """
    return [finding.sentence for finding in report.findings if finding.fault != "unlisted"]


def call_random_scripts(history: History, choose: random.Random, steps: int) -> None:
    actions = [
        *[history.resend_an_earlier_call] * 3, history.move_the_clock, history.let_time_pass,
        *[history.call_as_producer] * 3, *[history.call_as_worker] * 4, *[history.call_as_owner] * 3,
        history.end_an_attempt, *[history.call_as_coordinator] * 2, *[history.spend_and_join] * 3,
    ]  # fmt: skip
    history.start_some_runs(choose.choice)
    for _ in range(steps):
        choose.choice(actions)(choose.choice)


@pytest.mark.parametrize("name", sorted(name for name in PREPARE if not name.startswith("examine")))
def test_doctor_finds_nothing_after_any_single_script(valkey_server: Server, namespace: str, name: str) -> None:
    with closing(Store(valkey_server.url, namespace)) as store:
        store.do(PREPARE[name](store))
        assert sentences_of(store.do(examine(store.ns, now=store.at))) == []


@pytest.mark.parametrize("seed", range(8 * DEEPER))
def test_doctor_finds_nothing_after_any_history(valkey_server: Server, seed: int) -> None:
    choose = random.Random(seed)
    with closing(History(valkey_server.url)) as history:
        for _ in range(8):
            call_random_scripts(history, choose, 25)
            assert sentences_of(examine_history(history)) == []


@pytest.mark.parametrize("seed", range(8 * DEEPER))
def test_doctor_repairs_any_damage_until_nothing_is_wrong(valkey_server: Server, seed: int) -> None:
    """Keys are deleted, overwritten or half emptied, and TTLs are added or removed."""
    choose = random.Random(seed)
    with closing(History(valkey_server.url)) as history:
        call_random_scripts(history, choose, 150)
        store = history.store
        keys = sorted(key for key in store.dump() if not key.endswith((":namespace", ":watch")))
        for key in choose.sample(keys, min(8, len(keys))):
            kind = store.client.type(key)
            match choose.choice(["delete", "spoil", "half", "expire", "persist", "garble"]):
                case "delete":
                    store.client.delete(key)
                case "spoil":
                    store.spoil(key)
                case "half" if kind == b"set":
                    store.client.srem(key, choose.choice(sorted(store.members(key))))
                case "half" if kind == b"zset":
                    store.client.zrem(key, choose.choice(store.line(key)))
                case "expire":
                    store.client.expire(key, 100_000)
                case "persist":
                    store.client.persist(key)
                case "garble" if kind == b"hash":
                    store.client.hset(key, choose.choice(sorted(store.client.hkeys(key))), "garbled")
                case _:
                    store.client.rename(key, key + "x")
        repaired = examine_history(history, repair=True)
        assert repaired.healthy, [(finding.sentence, finding.outcome) for finding in repaired.findings]
        assert examine_history(history).found == 0
