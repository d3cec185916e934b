"""Selecting a worker process by what a user wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.errors import NotFound, Refused
from tests.unit.cli.test_cli_show import WORKER
from workers.cli.fleet import choose_process

HERE = [replace(WORKER, id="w12ab", pid=7), replace(WORKER, id="w34cd", pid=7)]  # one process, two partitions
OTHER = replace(WORKER, id="w56ef", pid=8)
ELSEWHERE = replace(WORKER, id="w78ab", pid=7, host="other")


@pytest.mark.parametrize("name", ["w12ab", "w12", "host:7", "7"])
def test_process_is_selected_by_id_id_prefix_pid_or_host_and_pid(name: str) -> None:
    assert choose_process(name, [*HERE, OTHER]) == HERE


def test_ambiguous_selection_is_refused_and_lists_the_candidates() -> None:
    with pytest.raises(Refused, match=r"'7' may mean .*host:7.*other:7.*: write more of the id, or host:pid"):
        choose_process("7", [*HERE, OTHER, ELSEWHERE])
    with pytest.raises(Refused, match="'w' may mean"):
        choose_process("w", [*HERE, OTHER])


@pytest.mark.parametrize("name", ["w9", "9", "nobody:7"])
def test_unknown_process_is_reported(name: str) -> None:
    with pytest.raises(NotFound, match="'workers list' shows"):
        choose_process(name, [*HERE, OTHER])
