"""A supervisor abandons the runs of another process only if that process is provably gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.waiting import wait_until
from workers.liveness.host import Mark, own_mark, provably_gone, resident_bytes

HERE = own_mark()
MARK = "from workers.liveness.host import own_mark; print(own_mark(), flush=True); input()"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Mark]]:
    """Another process and its mark."""
    process = subprocess.Popen(
        [sys.executable, "-c", MARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    mark = Mark.read(process.stdout.readline())
    assert mark is not None
    yield process, mark
    process.kill()
    process.communicate()


def test_process_mark_round_trips() -> None:
    assert HERE is not None
    assert Mark.read(str(HERE)) == HERE
    assert HERE.pid == os.getpid()
    assert [Mark.read(text) for text in ("", "a b c", "a b c d", "a b 1 2 3")] == [None] * 4


def test_running_process_is_not_gone(other: tuple[subprocess.Popen[str], Mark]) -> None:
    assert not provably_gone(other[1], HERE)


def test_killed_process_is_gone_even_before_its_parent_reaps_it(
    other: tuple[subprocess.Popen[str], Mark],
) -> None:
    process, mark = other
    process.kill()
    wait_until(lambda: provably_gone(mark, HERE), "the zombie is seen to have ended")
    process.wait()
    assert provably_gone(mark, HERE)


def test_different_process_with_a_reused_pid_is_not_mistaken_for_it(other: tuple[subprocess.Popen[str], Mark]) -> None:
    assert provably_gone(replace(other[1], started="1"), HERE)


@pytest.mark.parametrize("change", [{"boot": "another"}, {"namespace": "pid:[1]"}])
def test_mark_of_another_boot_or_pid_namespace_proves_nothing(
    other: tuple[subprocess.Popen[str], Mark], change: dict[str, str]
) -> None:
    process, mark = other
    process.kill()
    process.wait()
    assert not provably_gone(replace(mark, **change), HERE)  # type: ignore[arg-type]


def test_observer_without_a_mark_proves_nothing(other: tuple[subprocess.Popen[str], Mark]) -> None:
    process, mark = other
    process.kill()
    process.wait()
    assert not provably_gone(mark, None)


def test_process_of_another_user_counts_as_running() -> None:
    """Process 1 runs, although most users may not signal it."""
    assert HERE is not None
    assert not provably_gone(replace(HERE, pid=1, started=_started(1)), HERE)


def _started(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def test_memory_usage_is_reported() -> None:
    assert resident_bytes() > 2**20
