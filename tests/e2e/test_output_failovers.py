"""Readers of outputs on a Sentinel group and on a Cluster: a failover while runs emit costs no word and doubles none."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from coordinator import Client, Handle, Status
from tests.clusters import Cluster, Group
from tests.e2e.conftest import MakeStage
from tests.e2e.output_readers import Reader
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("a topology of their own")

TELLERS = 6
WORDS = int(os.environ.get("RUNS_TEST_WORDS", "300"))
P = 4


@pytest.mark.timeout(240)
@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
def test_readers_end_with_exactly_the_final_text_over_a_failover(
    make_stage: MakeStage, start_group: Callable[..., Group], start_cluster: Callable[..., Cluster], topology: str
) -> None:
    made: Group | Cluster = start_group() if topology == "sentinel" else start_cluster()
    stage = make_stage(made.url)
    stage.run("coordinator", "init", "--partitions", str(P), "--durability", "replicated(1)")
    stage.coordinator()
    stage._start(
        "workers", "start", "tests.e2e.output_app:runs", "--processes", "2", "--concurrency", "10", "--lease", "5"
    )
    with Client(stage.url, stage.namespace, timeout=50) as client:
        handles: list[Handle[list[str]]] = [
            client.enqueue("teller" if number % 2 else "plain_teller", {"words": WORDS}) for number in range(TELLERS)
        ]
        readers = [
            reader
            for handle in handles
            for reader in (Reader(handle, False), Reader(handle, True), Reader(handle, False, 7))
        ]
        wait_until(lambda: any(len(reader.text) > 20 for reader in readers), "readers have some words", timeout=90)
        tag = f"{{{stage.namespace}:{handles[0].id[-2:].lstrip('0') or '0'}}}"
        victim = made.master if isinstance(made, Group) else made.master_of(tag)
        victim.kill()
        wait_until(lambda: made.replaced(tag, victim), "another node is the master", timeout=60)
        if isinstance(made, Cluster):
            victim.restart()  # without a replica, the server confirms nothing
        had = {reader: len(reader.text) for reader in readers}
        assert any(count < WORDS for count in had.values()), "the failover came while runs emitted"
        assert Counter(handle.wait(120) for handle in handles) == {Status.COMPLETED: TELLERS}
        for reader in readers:
            reader.join(60)
            assert not reader.is_alive(), "the reader ends with the run"
            if reader.error is not None:
                raise reader.error
            assert reader.text == reader.handle.result()
            assert reader.gaps == 0
            if reader.settled:
                assert reader.delivered == list(range(1, WORDS + 1)), "each word once and in order"
