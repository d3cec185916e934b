"""The checks of a server, and their messages."""

from __future__ import annotations

import pytest

from coordinator.config import address
from coordinator.errors import NotConfigured
from coordinator.model.durability import check_durability
from coordinator.store.server_checks import examine, refuse
from coordinator.store.server_requirements import Wanted, findings, of_address

GOOD = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "connected_slaves": "0",
}


def test_good_server_causes_no_warning():
    assert findings(GOOD, "everysec", Wanted("local")) == []
    assert findings(GOOD, "always", Wanted("synced")) == []
    assert findings(GOOD | {"aof_enabled": "0"}, None, Wanted("none")) == []
    assert findings(GOOD | {"connected_slaves": "2"}, None, Wanted("replicated(2)")) == []


@pytest.mark.parametrize(
    ("changed", "fsync", "durability", "mends"),
    [
        ({"role": "slave"}, None, "local", "REPLICAOF NO ONE"),
        ({"maxmemory_policy": "allkeys-lru"}, "everysec", "local", "CONFIG SET maxmemory-policy noeviction"),
        ({"aof_enabled": "0"}, "everysec", "local", "CONFIG SET appendonly yes"),
        ({"aof_enabled": "0", "connected_slaves": "1"}, "everysec", "replicated(1)", "CONFIG SET appendonly yes"),
        ({}, "everysec", "synced", "CONFIG SET appendfsync always"),
        ({"valkey_version": "7.0.1"}, None, "local", "7.2 or newer"),
    ],
)
def test_refusal_says_how_to_fix_the_setting(changed, fsync, durability, mends):
    found = findings(GOOD | changed, fsync, Wanted(durability))
    assert [finding.refused for finding in found] == [True]
    with pytest.raises(NotConfigured, match=mends):
        refuse(found)


def test_node_demoted_by_a_failover_is_only_reported_as_a_replica():
    """The node synchronizes again with its append-only file off. Its calls are redirected to the new master."""
    filling = GOOD | {"role": "slave", "master_host": "10.0.0.2", "master_port": "6379", "aof_enabled": "0"}
    (found,) = findings(filling, None, Wanted("replicated(1)", creating=True, followed=True))
    assert (found.refused, "10.0.0.2:6379" in found.sentence) == (False, True)


def test_cluster_node_is_not_mistaken_for_a_single_server():
    (found,) = findings(GOOD | {"cluster_enabled": "1"}, None, Wanted("local"))
    assert (found.refused, "redis+cluster://" in found.sentence) == (False, True)
    assert findings(GOOD | {"cluster_enabled": "1"}, None, Wanted("local", followed=True)) == []


def test_suggested_command_for_adding_replicas_fits_a_cluster():
    (found,) = findings(GOOD | {"cluster_enabled": "1"}, None, Wanted("replicated(1)", creating=True, followed=True))
    assert (found.refused, "CLUSTER REPLICATE" in found.sentence) == (True, True)


def test_old_redis_is_refused():
    (found,) = findings({"redis_version": "6.2.14"}, None, Wanted("local"))
    assert found.refused


@pytest.mark.parametrize(
    ("info", "fsync", "durability", "said"),
    [
        (None, None, "local", "INFO"),
        (GOOD, None, "synced", "CONFIG"),
        (GOOD | {"aof_last_write_status": "err"}, None, "local", "disk"),
        (GOOD, None, "replicated(2)", "2 replicas"),
    ],
)
def test_unreadable_or_doubtful_setting_is_a_warning(info, fsync, durability, said):
    (found,) = findings(info, fsync, Wanted(durability))
    assert not found.refused
    assert said in found.sentence
    refuse([found])


def test_replica_is_refused_only_if_no_redirect_is_possible():
    """A process that starts in the middle of a failover may ask a node that was the master a moment ago."""
    replica = GOOD | {"role": "slave", "master_host": "10.0.0.7", "master_port": "7001"}
    (alone,) = findings(replica, "everysec", Wanted("local"))
    assert alone.refused
    assert "10.0.0.7:7001" in alone.sentence
    (followed,) = findings(replica, "everysec", Wanted("local", followed=True))
    assert not followed.refused
    assert "10.0.0.7:7001" in followed.sentence


def test_too_few_replicas_are_refused_only_when_a_namespace_is_created():
    (found,) = findings(GOOD, None, Wanted("replicated(1)", creating=True))
    assert found.refused
    assert "REPLICAOF" in found.sentence
    (later,) = findings(GOOD, None, Wanted("replicated(1)"))
    assert not later.refused


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ({"used_memory": "90", "maxmemory": "100"}, "90% of the server's memory"),
        ({"used_memory": "90", "maxmemory": "0", "total_system_memory": "100"}, "90% of its machine's memory"),
    ],
)
def test_low_memory_is_a_warning(memory, said):
    (found,) = findings(GOOD | memory, None, Wanted())
    assert not found.refused
    assert said in found.sentence
    assert findings(GOOD | memory | {"used_memory": "70"}, None, Wanted()) == []


def test_different_clocks_are_a_warning():
    at_once = Wanted(between=(1000.0, 1000.0))
    assert findings(GOOD, None, at_once, clock=1001.0) == []
    (ahead,) = findings(GOOD, None, at_once, clock=1010.0)
    (behind,) = findings(GOOD, None, at_once, clock=990.0)
    assert "10 s ahead of" in ahead.sentence
    assert "10 s behind" in behind.sentence


def test_slow_answer_is_not_taken_for_a_wrong_clock():
    """Before, a machine or a server that stalled for seconds was advised to use NTP."""
    late = Wanted(between=(1000.0, 1030.0))
    assert [findings(GOOD, None, late, clock=clock) for clock in (999.0, 1000.0, 1015.0, 1030.0, 1031.0)] == [[]] * 5
    (ahead,) = findings(GOOD, None, late, clock=1040.0)
    (behind,) = findings(GOOD, None, late, clock=990.0)
    assert "10 s ahead of" in ahead.sentence
    assert "10 s behind" in behind.sentence


@pytest.mark.parametrize(("clock", "said"), [(1000, 0), (1030, 0), (900, 1), (1100, 1)])
def test_clock_is_compared_with_the_times_before_and_after_the_request(clock: int, said: int):
    times = iter([1000.0, 1030.0])
    plan = examine(address("redis://localhost"), "n", now=lambda: next(times))
    next(plan)
    info = "\r\n".join(f"{name}:{value}" for name, value in GOOD.items()).encode()
    with pytest.raises(StopIteration) as done:
        plan.send([info, [b"appendfsync", b"everysec"], [b"%d" % clock, b"0"], []])
    assert len(done.value.value) == said


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("redis://localhost", False),
        ("redis://127.0.0.1", False),
        ("redis://[::1]:7000", False),
        ("rediss://far.example", False),
        ("unix:///run/x.sock", False),
        ("redis://far.example", True),
        ("redis+cluster://127.0.0.1,far.example", True),
        ("redis+sentinel://10.0.0.1/m", True),
    ],
)
def test_missing_tls_to_another_host_is_a_warning(url, warned):
    found = of_address(address(url))
    assert bool(found) == warned
    if warned:
        assert "rediss" in found[0].sentence
        assert not found[0].refused


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy noeviction"),
        ({"aof_enabled": "0"}, "appendonly yes"),
        ({"used_memory": "90", "maxmemory": "100"}, "maxmemory to more"),
    ],
)
def test_where_config_is_not_allowed_no_remedy_is_config_set(changed: dict[str, str], setting: str) -> None:
    (found,) = findings(GOOD | changed, None, Wanted("local"))
    assert "CONFIG SET" not in found.sentence
    assert f"let its administrator set {setting}" in found.sentence


def test_a_server_that_is_durable_in_its_own_way_can_be_used_at_a_level_that_says_so() -> None:
    memory_db = GOOD | {"aof_enabled": "0"}
    assert findings(memory_db, None, Wanted(check_durability("managed"))) == []
    (found,) = findings(memory_db, None, Wanted("local"))
    assert "'--durability managed'" in found.sentence
