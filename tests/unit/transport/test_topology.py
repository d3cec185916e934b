"""Which node serves a partition: what a search learns, and what happens if no node answers. The tests answer the questions."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import NotConfigured
from coordinator.model.address import HERE, Node, address
from coordinator.store.transport.error_mapping import TransientError
from coordinator.store.transport.topology import Topology, make_topology
from coordinator.store.transport.topology.hash_slots import SLOTS, masters_from_reply, slot_of, tag_of
from coordinator.store.transport.topology.question import Question
from coordinator.store.transport.topology.sentinel import MASTER_CHECK_SECONDS, MasterCheckTimer

A, B, C = Node("a", 1), Node("b", 2), Node("c", 3)
AWAY = TransientError("away", sent=False)


def searched(found: Topology, answers: dict[tuple[Node, str], Any]) -> list[Question]:
    """Run a search and return its questions. A node without a given answer is unreachable."""
    asked, steps, reply = [], found.search(), None
    try:
        question = next(steps)
        while True:
            asked.append(question)
            word, *more = map(str, question.command)
            reply = answers.get((question.node, f"{word} {more[0]}" if more else word), AWAY)
            reply = answers.get((question.node, word), AWAY) if reply is AWAY else reply
            question = steps.send(reply)
    except StopIteration:
        return asked


def test_hash_slots_are_computed_as_in_redis():
    # from CLUSTER KEYSLOT
    assert (slot_of("foo"), slot_of("{runs:0}"), slot_of("{runs:0}:run:x")) == (
        12182,
        slot_of("runs:0"),
        slot_of("runs:0"),
    )
    assert slot_of("{}x") != slot_of("{}y")
    assert tag_of("{runs:0}:bell:a") == "{runs:0}"


def test_cluster_topology_is_read_from_the_first_node_that_answers():
    cluster = make_topology(address("redis+cluster://a:1,b:2"))
    assert cluster.where("{x:0}") is None
    slots = [[0, 99, [b"b", 2, b"id"]], [100, SLOTS - 1, [b"", 3, b"id"]]]
    assert [question.node for question in searched(cluster, {(B, "CLUSTER"): slots})] == [A, B]
    assert cluster.where("{x:0}") in (B, Node("b", 3)), "a node that does not know its name is the one that was asked"
    assert not cluster.stale


def test_moved_slot_is_used_at_once_and_the_topology_is_refreshed():
    cluster = make_topology(address("redis+cluster://a:1"))
    searched(cluster, {(A, "CLUSTER"): [[0, SLOTS - 1, [b"a", 1]]]})
    cluster.moved(slot_of("{x:0}"), C)
    assert (cluster.where("{x:0}"), cluster.where("{x:1}"), cluster.stale) == (C, A, True)


def test_known_topology_stays_in_use_while_no_node_answers():
    cluster = make_topology(address("redis+cluster://a:1"))
    searched(cluster, {(A, "CLUSTER"): [[0, SLOTS - 1, [b"a", 1]]]})
    cluster.doubt(A)
    with pytest.raises(TransientError, match="no node of"):
        searched(cluster, {})
    assert cluster.where("{x:0}") == A


def test_slot_without_a_master_is_looked_up_again():
    cluster = make_topology(address("redis+cluster://a:1"))
    searched(cluster, {(A, "CLUSTER"): [[0, slot_of("{x:0}") - 1, [b"a", 1]]]})
    assert not cluster.stale
    assert cluster.where("{x:0}") is None
    assert cluster.stale


def test_master_named_by_sentinels_must_confirm_its_role():
    group = make_topology(address("redis+sentinel://a:1,b:2/main"))
    answers = {
        (A, "SENTINEL"): [b"c", b"3"], (B, "SENTINEL"): [b"c", b"4"], (C, "ROLE"): [b"slave"], (Node("c", 4), "ROLE"): [b"master"],
    }  # fmt: skip
    searched(group, answers)
    assert group.where("{x:0}") == Node("c", 4)
    group.doubt(Node("c", 4))
    assert group.where("{x:0}") is None, "after trouble with it the master is asked for before anything is sent"
    assert searched(group, answers)[0].node == B, "the sentinel that answered is asked first"


def test_group_without_a_master_raises_and_a_refusal_is_reported():
    group = make_topology(address("redis+sentinel://a:1,b:2/main"))
    with pytest.raises(TransientError, match="no master now"):
        searched(group, {(A, "SENTINEL"): None})
    with pytest.raises(NotConfigured, match="password"):
        searched(group, {(B, "SENTINEL"): NotConfigured("the password")})


def test_single_server_keeps_its_address():
    assert make_topology(address("redis://a")).where("{x:0}") is HERE
    assert masters_from_reply([], A) == [None] * SLOTS


def served(*masters: Node) -> list[list[Any]]:
    """Return the reply of CLUSTER SLOTS if these nodes share the hash slots."""
    width = SLOTS // len(masters)
    return [[n * width, (n + 1) * width - 1, [m.host.encode(), m.port]] for n, m in enumerate(masters)]


def test_isolated_node_is_not_trusted_forever():
    """It answers and names a master that is gone, so nodes that may know the successor are asked too."""
    cluster = make_topology(address("redis+cluster://b:2,c:3"))
    searched(cluster, {(B, "CLUSTER"): served(A, B), (C, "CLUSTER"): served(A, B)})
    cluster.doubt(A)
    asked = searched(cluster, {(B, "CLUSTER"): served(A, B), (C, "CLUSTER"): served(C, B)})
    assert [question.node for question in asked] == [B, C]
    assert C in {cluster.where(f"{{x:{n}}}") for n in range(20)}
    assert A not in {cluster.where(f"{{x:{n}}}") for n in range(20)}


def test_master_is_kept_while_no_other_node_knows_a_successor():
    cluster = make_topology(address("redis+cluster://b:2,c:3"))
    known = {(B, "CLUSTER"): served(A, B), (C, "CLUSTER"): served(A, B)}
    searched(cluster, known)
    cluster.doubt(A)
    assert [question.node for question in searched(cluster, known)] == [B, C], "and it is not waited for itself"
    assert A in {cluster.where(f"{{x:{n}}}") for n in range(20)}
    assert not cluster.stale


def test_node_named_by_a_redirect_is_asked_first():
    """Other nodes may not know the new master yet, and would send the client back to the old one."""
    cluster = make_topology(address("redis+cluster://a:1,b:2"))
    old = {(A, "CLUSTER"): served(A), (B, "CLUSTER"): served(A)}
    searched(cluster, old)
    cluster.moved(slot_of("{x:0}"), C)
    assert searched(cluster, {**old, (C, "CLUSTER"): served(C)})[0].node == C
    assert cluster.where("{x:0}") == C


def sentinels(master: Node, *names: Node) -> dict[tuple[Node, str], Any]:
    said = [master.host.encode(), str(master.port).encode()]
    return {(name, "SENTINEL"): said for name in names} | {(master, "ROLE"): [b"master"]}


def test_master_stays_in_use_during_a_routine_check_and_is_replaced_if_there_is_another():
    group = make_topology(address("redis+sentinel://a:1,b:2/mymaster"))
    searched(group, sentinels(C, A, B))
    group.recheck()
    assert (group.where("{x:0}"), group.stale) == (C, True), "nobody waits for it"
    other = Node("d", 4)
    searched(group, sentinels(other, A, B))
    assert (group.where("{x:0}"), group.stale) == (other, False)


def test_master_is_kept_after_a_failed_routine_check_but_not_when_it_is_in_doubt():
    group = make_topology(address("redis+sentinel://a:1,b:2/mymaster"))
    searched(group, sentinels(C, A, B))
    group.recheck()
    searched(group, {})
    assert (group.where("{x:0}"), group.stale) == (C, False), "sentinels that are away stop no heartbeat"
    group.doubt(C)
    assert group.where("{x:0}") is None
    with pytest.raises(TransientError):
        searched(group, {})


D, OLD, NEW = Node("d", 4), Node("m", 1), Node("m", 2)
THREE = "redis+sentinel://a:1,b:2,d:4/mymaster"


def named(master: Node, epoch: int, *by: Node) -> dict[tuple[Node, str], Any]:
    """Return the same answers with the epoch."""
    states = {(name, "SENTINEL MASTER"): [b"name", b"mymaster", b"config-epoch", str(epoch).encode()] for name in by}
    return sentinels(master, *by) | states


def test_sentinel_isolated_together_with_its_master_is_not_trusted():
    """Both answer as before: the server that it is the master, and the sentinel that it names this server."""
    group = make_topology(address(THREE))
    before = sentinels(OLD, A, B, D)
    assert [question.node for question in searched(group, before)] == [A, B, OLD], "most is enough"
    for leave in (group.doubt, lambda _: group.recheck()):
        leave(OLD)
        searched(group, named(OLD, 1, A) | named(NEW, 2, B, D))
        assert group.where("{x:0}") == NEW
        group.recheck()
        assert searched(group, named(OLD, 1, A) | named(NEW, 2, B, D))[0].node == B, "who was right is asked first"
        assert group.where("{x:0}") == NEW, "and it is stayed with"
        searched(group, before)


def test_latest_epoch_counts_when_sentinels_disagree_and_most_are_silent():
    for url in (THREE, "redis+sentinel://d:4,b:2,a:1/mymaster"):
        group = make_topology(address(url))
        searched(group, named(OLD, 1, A) | named(NEW, 2, B))
        assert group.where("{x:0}") == NEW


def test_master_of_an_older_epoch_is_not_used_when_the_latest_is_unreachable():
    group = make_topology(address(THREE))
    answers = named(OLD, 1, A) | named(NEW, 2, B)
    with pytest.raises(TransientError, match="no master now"):
        searched(group, answers | {(NEW, "ROLE"): AWAY})
    searched(group, sentinels(OLD, A, B, D))
    group.recheck()
    with pytest.raises(TransientError, match="no master now"):
        searched(group, answers | {(NEW, "ROLE"): AWAY})
    assert group.where("{x:0}") is None, "what it takes from now on is lost"


def test_successor_unknown_to_most_sentinels_is_found_when_the_old_master_is_gone():
    group = make_topology(address(THREE))
    searched(group, named(OLD, 1, A, B) | named(NEW, 2, D) | {(OLD, "ROLE"): AWAY})
    assert group.where("{x:0}") == NEW


def test_silent_sentinel_is_asked_last():
    group = make_topology(address(THREE))
    searched(group, sentinels(OLD, B, D))
    group.recheck()
    assert [question.node for question in searched(group, sentinels(OLD, B, D))] == [B, D, OLD]


def test_only_the_master_of_a_sentinel_group_is_checked_again_and_only_occasionally():
    group, cluster = make_topology(address(THREE)), make_topology(address("redis+cluster://a:1"))
    searched(group, sentinels(OLD, A, B, D))
    searched(cluster, {(A, "CLUSTER"): served(A)})
    timer = MasterCheckTimer(group)
    assert not timer.start_if_due(100.0)
    assert not timer.start_if_due(100.0 + MASTER_CHECK_SECONDS - 1)
    assert not group.stale
    assert timer.start_if_due(100.0 + MASTER_CHECK_SECONDS)
    assert (group.stale, group.where("{x:0}")) == (True, OLD), "it stays in use meanwhile"
    assert not timer.start_if_due(100.0 + MASTER_CHECK_SECONDS + 1)
    other = MasterCheckTimer(cluster)
    assert not any(other.start_if_due(moment) for moment in (100.0, 200.0))
    assert not cluster.stale, "who has lost most of its masters stops by itself there"
