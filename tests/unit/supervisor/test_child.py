"""A worker process is never blocked by its reports to the supervisor."""

from __future__ import annotations

import os
import threading

from workers.program.child import SupervisorPipes


def test_child_is_not_blocked_by_a_supervisor_that_does_not_read_its_progress_reports() -> None:
    """A supervisor that was stopped (SIGSTOP, a debugger) reads nothing, and its pipe is full after an hour of reports."""
    tells, its_tells = os.pipe()
    lifeline = os.open(os.devnull, os.O_RDONLY)
    supervisor = SupervisorPipes(lifeline, its_tells, b"")

    def for_hours() -> None:
        for second in range(10_000):
            supervisor.report_if_read(f"moves {second}.000")
        supervisor.report("left")  # there is room for important reports

    speaking = threading.Thread(target=for_hours, daemon=True)
    speaking.start()
    speaking.join(30)
    held_up = speaking.is_alive()
    os.set_blocking(tells, False)
    heard = os.read(tells, 1 << 20).split(b"\n")
    speaking.join(30)
    for end in (tells, its_tells, lifeline):
        os.close(end)
    assert not held_up
    assert heard[0] == b"moves 0.000"
    assert heard[-2:] == [b"left", b""]
