"""Set and list the rates of external calls."""

from __future__ import annotations

from coordinator.client.operations.open_namespace import OpenNamespace, new_mark, reading
from coordinator.model.names import name as check_name
from coordinator.model.policies.rates import RateLimit, encode_rate
from coordinator.model.run_id import partition_for
from coordinator.store.plans import rates as rate_plans
from coordinator.store.plans.merge import Plan


def set_rate(
    namespace: OpenNamespace, name: str, rate: str | None, burst: int | None, at_once: int | None
) -> Plan[bool]:
    """Set the rate of external calls, with the arguments of `Client.set_rate`. Return False if it already had these values."""
    return (yield from _change(namespace, name, encode_rate(rate, burst, at_once)))


def remove_rate(namespace: OpenNamespace, name: str) -> Plan[bool]:
    """Remove the rate of external calls with this name. Return False if there was none."""
    return (yield from _change(namespace, name, ""))


def _change(namespace: OpenNamespace, name: str, stored: str) -> Plan[bool]:
    check_name(name, "rate")
    space = yield from namespace.space()
    keys = space.keys(partition_for(name, space.partitions))
    return (yield from rate_plans.set_rate(keys, name, stored, new_mark()))


def list_rates(namespace: OpenNamespace) -> Plan[tuple[RateLimit, ...]]:
    """Return all rates, sorted by name."""
    space = yield from namespace.space()
    return tuple((yield from reading(rate_plans.read_rates(space.everywhere()))))
