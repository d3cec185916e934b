"""Client and AsyncClient have the same methods with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any, get_overloads

import pytest

import coordinator
from coordinator import AsyncClient, AsyncHandle, Client, Handle
from coordinator.store import scripts
from coordinator.store.plans import clients as client_plans

PAIRS = [(Client, AsyncClient), (Handle, AsyncHandle)]


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_") and callable(member)}


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default, str(p.annotation).replace("AsyncHandle", "Handle")) for p in found]


@pytest.mark.parametrize(("plain", "other"), PAIRS)
def test_sync_and_async_clients_have_the_same_methods_and_parameters(plain, other):
    assert public(plain).keys() == public(other).keys()
    for name, method in public(plain).items():
        twin = public(other)[name]
        assert parameters(method) == parameters(twin), name
        assert method.__doc__ == twin.__doc__, name
        assert [parameters(one) for one in get_overloads(method)] == [parameters(one) for one in get_overloads(twin)], (
            name
        )
        awaited = inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin)
        assert awaited == (name not in ("handle", "stream")), (
            name
        )  # a stream checks its arguments before it is iterated


def test_sync_and_async_clients_are_constructed_alike():
    assert parameters(Client.__init__) == parameters(AsyncClient.__init__)


def test_creating_a_client_opens_no_connection():
    client = Client("redis://127.0.0.1:1/0")
    handle = client.handle(f"{'0' * 20}-00")
    assert repr(handle) == f"<run {'0' * 20}-00>"
    client.close()


def test_public_names_are_listed_and_exist():
    assert sorted(coordinator.__all__) == coordinator.__all__
    assert all(hasattr(coordinator, name) for name in coordinator.__all__)


def test_new_run_has_the_field_order_of_the_script():
    assert scripts.ENQUEUE.item_fields == client_plans.NewRun._fields
    assert scripts.ENQUEUE.arguments == ("now", "birth")
