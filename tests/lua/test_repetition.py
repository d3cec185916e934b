"""A repeated call writes a field again, so that a WAIT after it covers the effect of the first call."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.store.plans.clients import NewRun
from tests.lua.calls import ONE, PREPARE, TWO
from tests.lua.store import ROUTES, Store
from tests.servers import Server

IDENTIFIED = [
    "enqueue", "claim", "checkpoint", "complete", "fail", "retry", "release", "reject", "cancel", "revive", "schedule", "fire",
    "extend", "kill", "suspend", "send", "pause", "acquire", "back_off", "rate",
]  # fmt: skip


@pytest.fixture
def real_store(real_server: Server, namespace: str) -> Iterator[Store]:
    store = Store(real_server.url, namespace)
    yield store
    store.close()


def writes(server: Server) -> int:
    return int(server.admin.info("persistence")["rdb_changes_since_last_save"])


@pytest.mark.parametrize("name", IDENTIFIED)
def test_repeated_call_is_replicated(real_server: Server, real_store: Store, name: str) -> None:
    plan = PREPARE[name](real_store)
    request = next(plan)
    requests = request if isinstance(request, list) else [request]
    first = real_store.wire.ask(requests)
    if first[0][0] == b"changed":  # The first request of a change only asks for the time.
        requests = [plan.send(first[0])]
        first = real_store.wire.ask(requests)
    before = writes(real_server)
    assert real_store.wire.ask(requests) == first
    assert writes(real_server) > before


def test_finding_a_run_by_its_key_is_replicated(real_server: Server, real_store: Store) -> None:
    real_store.enqueue(ONE, once="key", digest="d")
    before = writes(real_server)
    assert real_store.ask_enqueue(NewRun(TWO, ROUTES[0], b"", once="key", digest="d")) == ("found", ONE)
    assert writes(real_server) > before


def test_finding_a_signal_by_its_key_is_replicated(real_server: Server, real_store: Store) -> None:
    real_store.enqueue(ONE)
    real_store.send(ONE, operation="one", key="k")
    before = writes(real_server)
    assert real_store.send(ONE, operation="two", key="k") == ["found"]
    assert writes(real_server) > before
