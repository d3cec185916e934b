"""The effects campaign tells a call that was on its way when its process was killed from an effect that happened twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator import Status
from tests.faults.campaigns.effects import CALLS, Event, Story, Tally, judge, late_calls, open_lab
from tests.faults.lab.process_identity import is_alive, this_process
from tests.http_frames import is_post
from tests.waiting import wait_until

FIRST, SECOND = "10-100", "11-200"


def absent(*living: str) -> Event:
    return Event("absent", SECOND, 2.0, living=frozenset(living))


def done(process: str, *, orphaned: bool = False) -> Event:
    return Event("done", process, 3.0, orphaned)


@pytest.mark.parametrize(
    ("story", "late"),
    [
        pytest.param([absent(SECOND), done(FIRST, orphaned=True), done(SECOND)], 1, id="stored before the second call"),
        pytest.param([absent(SECOND), done(SECOND), done(FIRST, orphaned=True)], 1, id="stored after the second call"),
        pytest.param(
            [absent(FIRST, SECOND), done(SECOND), done(FIRST, orphaned=True)], 0, id="sender lived at the check"
        ),
        pytest.param([absent(SECOND), done(SECOND), done(FIRST)], 0, id="sender lived when it was stored"),
        pytest.param(
            [done(FIRST, orphaned=True), absent(SECOND), done(SECOND)], 0, id="the check should have found it"
        ),
        pytest.param([done(FIRST, orphaned=True), done(SECOND)], 0, id="no check"),
        pytest.param([absent(SECOND), done(SECOND, orphaned=True)], 0, id="only the check of the sender itself"),
    ],
)
def test_a_call_is_late_if_its_sender_was_dead_before_a_check_that_did_not_find_it(story: Story, late: int) -> None:
    assert len(late_calls(story)) == late


def test_a_process_that_was_killed_is_dead_before_and_after_it_is_reaped() -> None:
    name = "import tests.faults.lab.process_identity as p; print(p.this_process(), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    process = child.stdout.readline().strip()
    assert is_alive(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process)
    child.communicate()
    assert not is_alive(process)


def test_a_process_with_the_same_id_is_another_process() -> None:
    assert is_alive(this_process())
    assert not is_alive(f"{os.getpid()}-1")


@pytest.mark.timeout(240)
@pytest.mark.matrix("the fault lab")
def test_call_that_is_on_its_way_during_a_kill_is_counted_as_late(tmp_path: Path) -> None:
    with open_lab(tmp_path) as lab:
        lab.stage.coordinator()
        lab.stage.fleet(lease=15.0)
        senders = list[str]()

        def is_call(request: bytes) -> bool:
            if is_post(request):
                senders.append(request.split()[1].decode().partition("?")[2])
            return is_post(request)

        on_its_way = lab.lines.to_service.delay_next_request(200, is_call)
        handle = lab.client.enqueue("posted", {"count": CALLS})
        assert on_its_way.happened.wait(60), lab.stage.logs()
        (sender,) = senders
        (tmp_path / "deaths").write_text(f"{sender} {time.time()}\n")
        os.kill(int(sender.partition("-")[0]), signal.SIGKILL)

        def was_not_found() -> bool:
            events = lab.service.stories.get(f"{handle.id}.0", [])
            return any(event.what == "absent" and event.process != sender for event in events)

        wait_until(was_not_found, "another process to look for the call that is on its way", timeout=90)
        on_its_way.over.set()
        assert handle.wait(90) is Status.COMPLETED
        tally = Tally()
        judge(lab.stage, lab.client, lab.service, [("posted", handle)], tally)
    assert tally.breaches == []
    assert [f"process {sender} was killed" in line for line in tally.evidence] == [True]
    assert tally.late == 1
