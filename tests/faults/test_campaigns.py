"""The short form of the campaigns: a few faults of each, judged by all rules. `scripts/faults NAME --count N` is the long form."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.campaigns import bytes as every_byte
from tests.faults.campaigns import (
    coordinators,
    effects,
    failover,
    kill,
    line,
    partition,
    replies,
    roll,
    server,
    soak,
    zombie,
)
from tests.faults.campaigns.runner import Campaign, Ran, carry_out
from tests.faults.lab.hosts import missing_requirement
from tests.faults.lab.triggers import HIT
from tests.servers import Server

pytestmark = pytest.mark.matrix("the fault lab")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("campaign", "count"),
    [
        (kill.CAMPAIGN, 3),
        (zombie.CAMPAIGN, 1),
        (roll.CAMPAIGN, 1),
        (coordinators.CAMPAIGN, 1),
        (line.campaign(), 1),
        (server.campaign("always"), 2),
        (replies.campaign(), 2),
        (failover.campaign("cluster", "replicated(1)"), 2),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_few_faults_break_no_promise(campaign: Campaign, count: int, tmp_path: Path) -> None:
    _carried_out(campaign, count, tmp_path)


@pytest.mark.timeout(240)
def test_a_call_of_every_script_is_lost_or_late_and_no_promise_is_broken(tmp_path: Path) -> None:
    ran = _carried_out(replies.campaign(at_once=len(HIT)), len(HIT), tmp_path)
    assert {fault.rpartition(" ")[0] for fault in ran.faults} == {script.name for script in HIT}


@pytest.mark.timeout(240)
def test_a_network_that_drops_packets_in_silence_breaks_no_promise(tmp_path: Path) -> None:
    """Use a level that holds even if a live master is declared dead, which may happen on a busy machine."""
    if sentence := missing_requirement():
        pytest.skip(sentence)  # It depends on the machine, and cannot be installed.
    _carried_out(partition.campaign("replicated(2)"), 1, tmp_path)


def _carried_out(campaign: Campaign, count: int, tmp_path: Path) -> Ran:
    seed = random.SystemRandom().randrange(10**6)
    ran = carry_out(campaign, tmp_path, count, seed)
    assert ran.judgement.breaches == {}, f"seed {seed}"
    assert ran.judgement.counts["acknowledged"] > 0
    assert ran.faults.total() == count
    return ran


@pytest.mark.timeout(240)
def test_a_short_soak_samples_every_process_and_breaks_no_promise(tmp_path: Path) -> None:
    sampler = soak.Sampler()
    _carried_out(soak.campaign(sampler, pace=1.0), 2, tmp_path)
    names = {sample.name for sample in sampler.samples}
    assert names >= {"supervisor", "worker", "coordinator", "producer", "operator", "record keeper"}


@pytest.mark.timeout(240)
def test_kills_on_both_sides_of_a_call_repeat_and_lose_no_effect(tmp_path: Path) -> None:
    tally = effects.run_lab(tmp_path, 6)
    assert tally.breaches == []
    assert tally.kills == {"before": 3, "after": 3}
    assert tally.effects > 0
    assert tally.faults["server's reply lost"] > 0


def test_a_connection_that_is_cut_at_some_bytes_costs_nothing(valkey_server: Server) -> None:
    results = list(every_byte.cuts(valkey_server, every=97))
    assert len(results) > 12
    assert [(what, wrong) for what, wrong in results if wrong] == []
