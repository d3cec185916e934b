"""Errors of redis-py become errors that say what happened, on which server, and what to do. No server."""

from __future__ import annotations

import pytest
import redis.exceptions as foreign

from coordinator.errors import BadCall, NotConfigured, ServerFull, Unconfirmed, Unreachable
from coordinator.model.address import Node, address
from coordinator.store.transport.error_mapping import SlotMoved, TransientError, final_error, map_error

PLAIN = address("redis://user:secret@h:6379/0")
TLS = address("rediss://user:secret@h:6379/0")
CLUSTER = address("redis+cluster://user:secret@h:7000")
NODE = Node("n", 7001)
REFUSED = foreign.ConnectionError("Error 111 connecting to h:6379. Connection refused.")


def test_an_unreachable_server_is_named_with_a_likely_cause_and_without_the_password() -> None:
    error = map_error(REFUSED, PLAIN, sent=False)
    assert isinstance(error, TransientError)
    assert (error.sent, error.rediscover) == (False, True)
    assert str(error) == f"redis://h:6379/0 can't be reached: {REFUSED} (is the server running?)"
    silent = map_error(foreign.TimeoutError("Timeout connecting to server"), TLS, sent=False)
    assert str(silent).endswith("Timeout connecting to server (does it speak TLS?)")
    assert "secret" not in f"{error}{silent}"


def test_a_connection_that_breaks_after_the_request_was_sent_gets_no_hint_and_stays_in_doubt() -> None:
    error = map_error(REFUSED, PLAIN, sent=True)
    assert isinstance(error, TransientError)
    assert error.sent
    assert str(error) == f"redis://h:6379/0 can't be reached: {REFUSED}"


def test_a_node_of_a_cluster_is_named_with_its_cluster() -> None:
    error = map_error(REFUSED, CLUSTER, sent=False, node=NODE)
    assert str(error).startswith("n:7001 of redis+cluster://h:7000 can't be reached")


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (foreign.AuthenticationError("WRONGPASS"), NotConfigured, "refused the user or password: put the right ones"),
        (foreign.NoPermissionError("no right to EVALSHA"), NotConfigured, "'coordinator acl' prints the rights"),
        (foreign.OutOfMemoryError("OOM"), ServerFull, "raise maxmemory or let runs end"),
        (foreign.MovedError("5 h:7001"), NotConfigured, r"use redis\+cluster:// in the URL"),
        (foreign.ResponseError("ERR This instance has cluster support disabled"), NotConfigured, "not a Cluster node"),
        (foreign.ResponseError("unknown command 'SENTINEL'"), NotConfigured, "is not a sentinel: name the sentinels"),
        (
            foreign.ResponseError("unknown command 'EVAL'"),
            NotConfigured,
            "does not know the command EVAL: .*rename-command",
        ),
        (foreign.ResponseError("DENIED Redis is running in protected mode because"), NotConfigured, "protected mode"),
        (foreign.InvalidResponse('Protocol error, got "H" as reply type byte'), NotConfigured, "an HTTP server"),
        (foreign.ConnectionError("tlsv13 alert certificate required"), NotConfigured, "requires a client certificate"),
        (
            foreign.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed (x.c:1)"),
            NotConfigured,
            r"is refused \(self-signed\): name its authority with \?ssl_ca_certs=FILE",
        ),
        (foreign.ResponseError("ERR syntax"), BadCall, "answered with an error: ERR syntax"),
        (ValueError("not bytes"), BadCall, "a request to redis://h:6379/0 can't be encoded: not bytes"),
    ],
)
def test_error_that_no_retry_can_fix_says_what_to_do(error: Exception, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        raise map_error(error, PLAIN, sent=False)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "sentence", "rediscover"),
    [
        (foreign.ReadOnlyError("read only"), "is a replica and takes no writes", True),
        (foreign.AskError("5 h:7002"), "is moving the hash slot of this partition to another node", False),
        (foreign.ClusterDownError("the cluster is down"), "can't answer now: the cluster is down", True),
        (
            foreign.ConnectionError("max number of clients reached"),
            "accepts no more connections: raise its maxclients",
            False,
        ),
        (foreign.BusyLoadingError("loading"), "can't answer now: loading", False),
        (foreign.ResponseError("UNBLOCKED force"), "can't answer now: UNBLOCKED force", True),
        (foreign.ResponseError("MISCONF no snapshot"), "can't answer now: MISCONF no snapshot", False),
        (
            foreign.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
            "can't answer now: its disk is full, so it takes no writes until there is space again",
            False,
        ),
    ],
)
def test_temporary_error_is_transient(error: Exception, sentence: str, rediscover: bool) -> None:
    mapped = map_error(error, CLUSTER, sent=False, node=NODE)
    assert isinstance(mapped, TransientError)
    assert str(mapped).startswith(f"n:7001 of redis+cluster://h:7000 {sentence}")
    assert (mapped.sent, mapped.rediscover) == (False, rediscover)


def test_redirect_names_the_new_master_or_else_the_asked_host() -> None:
    moved = map_error(foreign.MovedError("5 OTHER:7002"), CLUSTER, sent=False, node=NODE)
    assert isinstance(moved, SlotMoved)
    assert (moved.slot, moved.node) == (5, Node("other", 7002))
    same_host = map_error(foreign.MovedError("5 :7002"), CLUSTER, sent=False, node=NODE)
    assert isinstance(same_host, SlotMoved)
    assert same_host.node == Node("n", 7002)


def test_errors_of_this_package_are_kept() -> None:
    for error in (TransientError("x", sent=True), NotConfigured("y")):
        assert map_error(error, PLAIN, sent=False) is error


def test_caller_learns_whether_the_call_may_have_been_executed() -> None:
    sent = final_error(TransientError("no answer", sent=True))
    assert isinstance(sent, Unconfirmed)
    assert "may have been carried out: repeat it with the same ids or key" in str(sent)
    assert type(final_error(TransientError("no server", sent=False))) is Unreachable


def test_missing_package_is_named_at_once_and_not_treated_as_an_outage() -> None:
    error = map_error(ModuleNotFoundError("No module named 'fakeredis'"), PLAIN, sent=False)
    assert isinstance(error, NotConfigured)
    assert "can't be imported: No module named 'fakeredis'" in str(error)
    assert isinstance(error.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'Connection' object has no attribute 'can_read'"),
        KeyError("host"),
        AssertionError("one answer for each"),
        RuntimeError("Event loop is closed"),
    ],
)
def test_programming_error_is_reported_at_once_with_its_type_and_its_traceback(error: Exception) -> None:
    mapped = map_error(error, PLAIN, sent=True)
    assert isinstance(mapped, BadCall)
    assert f"unexpected error, {type(error).__name__}: " in str(mapped)
    assert mapped.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("the handler is closed"), EOFError(), MemoryError()])
def test_connection_closed_with_an_unusual_error_is_retried(error: Exception) -> None:
    mapped = map_error(error, PLAIN, sent=True)
    assert isinstance(mapped, TransientError)
    assert (mapped.sent, mapped.rediscover) == (True, True)
