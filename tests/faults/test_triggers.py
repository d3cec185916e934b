"""Each script is sent in a lab and hit, or there is a reason why not, and each campaign goes through all of them."""

from __future__ import annotations

import random

from coordinator.store.scripts import SCRIPTS
from tests.faults.campaigns import kill, replies
from tests.faults.lab.observer import POINTS
from tests.faults.lab.triggers import ASKED, HIT, NOT_HIT
from tests.faults.programs.operator import ACTIONS


def test_every_script_is_hit_or_has_a_reason_why_not() -> None:
    assert sorted(script.name for script in (*HIT, *NOT_HIT)) == sorted(script.name for script in SCRIPTS)
    assert all(NOT_HIT.values())


def test_the_operator_has_every_requested_action() -> None:
    assert set(ASKED.values()) <= set(ACTIONS)


def test_a_round_hits_every_script_with_a_lost_reply_and_a_late_request() -> None:
    first, second = replies.halves(random.Random(7))
    assert {turn.script for turn in first} == {turn.script for turn in second} == set(HIT)
    assert sorted((turn.script.name, turn.late) for turn in first + second) == sorted(
        (script.name, late) for script in HIT for late in (False, True)
    )


def test_a_round_of_crashes_covers_every_point_around_every_script() -> None:
    assert set(kill.crash_points(random.Random(7))) == {(script, point) for script in HIT for point in POINTS}


def test_the_labs_of_these_campaigns_have_an_operator_and_a_record_keeper() -> None:
    for campaign in (kill.CAMPAIGN, replies.campaign()):
        assert (campaign.plan.operators, campaign.plan.record_keepers) == (1, 1)
