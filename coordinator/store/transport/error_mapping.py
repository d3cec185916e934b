"""Map errors of redis-py to errors of this package, in one place."""

from __future__ import annotations

import re

import redis.exceptions as foreign

from coordinator.errors import BadCall, CoordinatorError, NotConfigured, ServerFull, Unconfirmed, Unreachable
from coordinator.model.address import Address, Node

_TRY_LATER = ("BUSY", "UNBLOCKED", "NOREPLICAS", "MISCONF")  # error codes for which redis-py has no class
ConnectionLost = foreign.ConnectionError
ErrorReply = foreign.ResponseError
ScriptMissing = foreign.NoScriptError
ServerLoading = foreign.BusyLoadingError


_PROTECTED, _TOO_MANY = "DENIED", "max number of clients"


class TransientError(Exception):
    """A temporary failure, after which the request may be sent again.

    Attributes:
        sent: True if the request may have been carried out.
        rediscover: True if another node may serve the partition now, so that the wire must search for it.
    """

    def __init__(self, message: str, *, sent: bool, rediscover: bool = False) -> None:
        super().__init__(message)
        self.sent, self.rediscover = sent, rediscover


class SlotMoved(TransientError):
    """The error of a request to a node that does not serve the hash slot any more.

    Attributes:
        slot: The hash slot.
        node: The master of the hash slot now, to which the request must be sent.
    """

    def __init__(self, message: str, slot: int, node: Node) -> None:
        super().__init__(message, sent=False, rediscover=True)
        self.slot, self.node = slot, node


def map_error(
    error: Exception, address: Address, *, sent: bool, node: Node | None = None, sentinel: bool = False
) -> Exception:
    """Return the error of this package for an error of redis-py. The message never contains a password.

    Args:
        error: The error to map. Errors of this package are returned as they are.
        address: The address of the server, Sentinel group or Cluster.
        sent: True if the request may have been carried out.
        node: The node that failed, if it is known.
        sentinel: True if that node is a sentinel.
    """
    if isinstance(error, (TransientError, CoordinatorError)):
        return error
    where = f"{node} of {address}" if node is not None and node.host else str(address)
    text = str(error)
    for judged in (
        _refused(error, text, where, sentinel),
        _wrong_scheme(error, text, where, address),
        _wrong_server(error, text, where),
        _try_later(error, text, where, node),
        _wrong_certificate(text, where),
    ):
        if judged is not None:
            return judged
    if isinstance(error, (foreign.ConnectionError, foreign.TimeoutError, OSError, TimeoutError)):
        reason = text or type(error).__name__
        hint = "" if sent else _hint(reason, address)
        return TransientError(f"{where} can't be reached: {reason}{hint}", sent=sent, rediscover=True)
    if isinstance(error, foreign.RedisError):
        return BadCall(f"{where} answered with an error: {text}")
    if isinstance(error, (TypeError, ValueError)):
        return _caused_by(error, BadCall(f"a request to {where} can't be encoded: {text}"))
    if _is_broken_connection(error, text):
        reason = text or type(error).__name__
        return TransientError(f"the connection to {where} broke: {reason}", sent=sent, rediscover=True)
    return _unexpected(error, text, where)


def _is_broken_connection(error: Exception, text: str) -> bool:
    """Return True if the error means that a connection broke, although it is neither an OSError nor an error of redis-py.

    uvloop raises a RuntimeError if a connection was closed while it was being written to. A MemoryError counts too, because an
    allocation that failed may succeed later.
    """
    return isinstance(error, (EOFError, MemoryError)) or (
        isinstance(error, RuntimeError) and "the handler is closed" in text
    )


def _unexpected(error: Exception, text: str, where: str) -> CoordinatorError:
    """Return the error of this package for an error that is not caused by an outage, so that the request is not repeated."""
    if isinstance(error, ImportError):
        return _caused_by(error, NotConfigured(f"a package that {where} needs can't be imported: {text}"))
    return _caused_by(
        error, BadCall(f"a request to {where} failed with an unexpected error, {type(error).__name__}: {text}")
    )


def _caused_by(error: Exception, mapped: CoordinatorError) -> CoordinatorError:
    """Return the mapped error with the original error as its cause, so that a traceback shows both."""
    mapped.__cause__ = error
    return mapped


def _hint(reason: str, address: Address) -> str:
    """Return the likely cause of a failed connection as a question in parentheses; empty if no cause is likely."""
    if address.tls and "imeout" in reason:
        # A server without TLS reads the handshake as the beginning of a command, and waits for the rest.
        return " (does it speak TLS?)"
    if "refused" in reason:
        return " (is the server running?)"
    return ""


def _refused(error: Exception, text: str, where: str, sentinel: bool) -> CoordinatorError | None:
    """Return the error for a refusal that a retry cannot change (wrong password, missing rights, full memory); else None."""
    if isinstance(
        error, (foreign.AuthenticationError, foreign.AuthenticationWrongNumberOfArgsError)
    ) or text.startswith(("NOAUTH", "WRONGPASS")):
        # The message does not show a complete URL as an example: the commands mask the part where a password would be.
        place = "as ?sentinel_password=…, and &sentinel_username=…" if sentinel else "as user:password@ before the host"
        return NotConfigured(f"{where} refused the user or password: put the right ones into the URL, {place}")
    # Inside a script, servers report missing rights with other words than outside.
    if isinstance(error, foreign.NoPermissionError) or re.search(
        r"^NOPERM|ACL failure in script|The user executing the script", text
    ):
        return NotConfigured(
            f"the user in the URL lacks rights on {where}: {text}; 'coordinator acl' prints the rights that are needed"
        )
    if isinstance(error, foreign.OutOfMemoryError) or text.startswith("OOM"):
        return ServerFull(f"the memory of {where} is full: raise maxmemory or let runs end")
    return None


def _wrong_scheme(error: Exception, text: str, where: str, address: Address) -> NotConfigured | None:
    """Return the error for a URL whose scheme does not fit the server; None if the error means something else."""
    if isinstance(error, foreign.MovedError) and address.kind == "one":
        return NotConfigured(f"{where} is a node of a Cluster with several nodes: use redis+cluster:// in the URL")
    if "cluster support disabled" in text:
        return NotConfigured(
            f"{where} is not a Cluster node: use redis://, or redis+sentinel:// and name its sentinels"
        )
    unknown = re.search(r"unknown command ['`]?(\w+)", text, re.I)
    if unknown is None:
        return None
    if unknown[1].upper() == "SENTINEL":
        return NotConfigured(
            f"{where} is not a sentinel: name the sentinels in the URL, or use redis:// for a single server"
        )
    return NotConfigured(
        f"{where} does not know the command {unknown[1].upper()}: its configuration has renamed or disabled it "
        "(rename-command), or it is a sentinel, which needs redis+sentinel://host/service"
    )


def is_refused_connection(text: str) -> bool:
    """Return True if the text is the error with which a server refuses a new connection and closes it."""
    return text.startswith(_PROTECTED) or _TOO_MANY in text


def _wrong_server(error: Exception, text: str, where: str) -> CoordinatorError | TransientError | None:
    """Return the error for a server that accepts no requests of this client, or is not a Redis or Valkey server; else None."""
    if text.startswith(_PROTECTED):
        return NotConfigured(
            f"{where} refuses connections from other machines, because it runs in protected mode: set a password for its default "
            "user, or 'protected-mode no' if the network is safe"
        )
    if isinstance(error, foreign.InvalidResponse):
        kind = "an HTTP server" if 'got "H"' in text else "another kind of server, or TLS is missing in the URL"
        return NotConfigured(
            f"{where} is not a Redis or Valkey server: its answer has another protocol ({kind}?); check host and port"
        )
    if _TOO_MANY in text:
        return TransientError(
            f"{where} accepts no more connections: raise its maxclients, or close other clients", sent=False
        )
    return None


def _try_later(error: Exception, text: str, where: str, node: Node | None) -> TransientError | None:
    """Return the error for a node that cannot serve a request now, or no longer serves the partition; otherwise None."""
    if isinstance(error, foreign.ReadOnlyError):
        return TransientError(
            f"{where} is a replica and takes no writes: use the address of its primary", sent=False, rediscover=True
        )
    if isinstance(error, foreign.MovedError):
        host = error.host or (node.host if node is not None else "")  # a node that does not know its own name
        return SlotMoved(f"{where} no longer serves this partition", error.slot_id, Node(host.lower(), error.port))
    if isinstance(error, foreign.AskError):
        # ASK redirects are not followed. Our scripts use keys that they do not name, and while a hash slot moves, its
        # keys are on two nodes. No script runs until all keys have arrived, because the one key that each script names
        # never exists.
        return TransientError(f"{where} is moving the hash slot of this partition to another node", sent=False)
    if isinstance(error, (foreign.ClusterDownError, foreign.MasterDownError)):
        return TransientError(f"{where} can't answer now: {text}", sent=False, rediscover=True)
    if text.startswith("MISCONF") and "No space left" in text:
        return TransientError(
            f"{where} can't answer now: its disk is full, so it takes no writes until there is space again ({text})",
            sent=False,
        )
    if isinstance(error, (foreign.TryAgainError, foreign.BusyLoadingError)) or text.startswith(_TRY_LATER):
        return TransientError(f"{where} can't answer now: {text}", sent=False, rediscover=text.startswith("UNBLOCKED"))
    return None


def _wrong_certificate(text: str, where: str) -> NotConfigured | None:
    """Return the error for a certificate that is missing or not trusted, which a retry cannot change; otherwise None."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        found = re.search(r"certificate verify failed: ([^(\]]+)", text)
        why = found[1].strip().rstrip(".") if found else "not trusted"
        return NotConfigured(
            f"the certificate of {where} is refused ({why}): name its authority with ?ssl_ca_certs=FILE in the URL, and use "
            "the host name that is in the certificate"
        )
    if re.search(r"certificate required|handshake.failure|UNKNOWN_CA|unknown ca", text, re.I):
        return NotConfigured(
            f"{where} requires a client certificate, or does not trust the one that it got: "
            "name yours with ?ssl_certfile=FILE&ssl_keyfile=FILE in the URL"
        )
    return None


def final_error(error: TransientError) -> CoordinatorError:
    """Return the error for a request that is not repeated any more.

    The error is Unconfirmed if the request may have been carried out, and Unreachable otherwise.
    """
    if error.sent:
        return Unconfirmed(
            f"{error}; the call was sent and may have been carried out: repeat it with the same ids or key"
        )
    return Unreachable(str(error))
