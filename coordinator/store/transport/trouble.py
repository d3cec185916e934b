"""What goes wrong on the way to a server, mapped once: to our errors, or to trouble that may pass."""

from __future__ import annotations

import re

import redis.exceptions as foreign

from coordinator.errors import BadCall, CoordinatorError, NotConfigured, ServerFull, Unconfirmed, Unreachable
from coordinator.model.address import Address, Node

_NOT_NOW = ("BUSY", "UNBLOCKED", "NOREPLICAS", "MISCONF")  # those for which redis-py has no class
Refusal = foreign.ResponseError
Forgotten = foreign.NoScriptError
Loading = foreign.BusyLoadingError


class Trouble(Exception):
    """Something that may pass: the request is to be sent again. `sent` says whether it may have been carried out; `elsewhere`
    that the node may no longer be the one that serves it."""

    def __init__(self, message: str, *, sent: bool, elsewhere: bool = False) -> None:
        super().__init__(message)
        self.sent, self.elsewhere = sent, elsewhere


class Moved(Trouble):
    """The slot has another master now."""

    def __init__(self, message: str, slot: int, node: Node) -> None:
        super().__init__(message, sent=False, elsewhere=True)
        self.slot, self.node = slot, node


def mapped(
    error: Exception, address: Address, *, sent: bool, node: Node | None = None, sentinel: bool = False
) -> Exception:
    """Our error for a foreign one. Never with a password in it."""
    if isinstance(error, (Trouble, CoordinatorError)):
        return error
    where = f"{node} of {address}" if node is not None and node.host else str(address)
    text = str(error)
    for judged in (
        _refused(error, text, where, sentinel),
        _another_kind(error, text, where, address),
        _not_now(error, text, where, node),
        _tls(text, where),
    ):
        if judged is not None:
            return judged
    if isinstance(error, (foreign.ConnectionError, foreign.TimeoutError, OSError, TimeoutError)):
        # a server without TLS waits for the rest of what it takes for a command
        silent = (
            " (does it speak TLS?)" if address.tls and not sent and "imeout" in (text or type(error).__name__) else ""
        )
        return Trouble(f"{where} can't be reached: {text or type(error).__name__}{silent}", sent=sent, elsewhere=True)
    if isinstance(error, foreign.RedisError):
        return BadCall(f"{where} answered: {text}")
    if isinstance(error, (TypeError, ValueError)):
        return BadCall(f"a request to {where} can't be made of what was given: {text}")
    # uvloop has a RuntimeError for a connection that was closed under it
    return Trouble(f"the connection to {where} broke: {text or type(error).__name__}", sent=sent, elsewhere=True)


def _refused(error: Exception, text: str, where: str, sentinel: bool) -> CoordinatorError | None:
    """What won't pass by waiting."""
    if isinstance(
        error, (foreign.AuthenticationError, foreign.AuthenticationWrongNumberOfArgsError)
    ) or text.startswith(("NOAUTH", "WRONGPASS")):
        # no example of a whole URL: the commands mask what stands where a password does
        place = "as ?sentinel_password=…, and &sentinel_username=…" if sentinel else "as user:password@ before the host"
        return NotConfigured(f"{where} refused the user or password: put the right ones into the URL, {place}")
    # inside a script the servers say it in words of their own
    if isinstance(error, foreign.NoPermissionError) or re.search(
        r"^NOPERM|ACL failure in script|The user executing the script", text
    ):
        return NotConfigured(
            f"the user has not the rights that are needed on {where}: {text}; 'coordinator acl' prints them"
        )
    if isinstance(error, foreign.OutOfMemoryError) or text.startswith("OOM"):
        return ServerFull(f"the memory of {where} is full: raise maxmemory or let runs end")
    return None


def _another_kind(error: Exception, text: str, where: str, address: Address) -> NotConfigured | None:
    """What won't pass by waiting: a URL whose scheme does not fit what is there."""
    if isinstance(error, foreign.MovedError) and address.kind == "one":
        return NotConfigured(f"{where} is a node of a Cluster, which has other nodes, too: use redis+cluster://")
    if "cluster support disabled" in text:
        return NotConfigured(
            f"{where} is no node of a Cluster: use redis://, or redis+sentinel:// and name its sentinels"
        )
    unknown = re.search(r"unknown command ['`]?(\w+)", text, re.I)
    if unknown is None:
        return None
    if unknown[1].upper() == "SENTINEL":
        return NotConfigured(
            f"{where} is no sentinel: name the sentinels in the URL, or use redis:// for a server alone"
        )
    return NotConfigured(
        f"{where} does not know the command {unknown[1].upper()}: if it is a sentinel, use redis+sentinel://host/service"
    )


def _not_now(error: Exception, text: str, where: str, node: Node | None) -> Trouble | None:
    """What a node answers that can't serve a request at the moment, or no more."""
    if isinstance(error, foreign.ReadOnlyError):
        return Trouble(
            f"{where} is a replica and takes no writes: use the address of its primary", sent=False, elsewhere=True
        )
    if isinstance(error, foreign.MovedError):
        host = error.host or (node.host if node is not None else "")  # a node that does not know its own name
        return Moved(f"{where} does not serve this partition any more", error.slot_id, Node(host.lower(), error.port))
    if isinstance(error, foreign.AskError):
        # Not followed: our scripts touch keys that they don't name, and while a slot is being moved its keys are in two places.
        # No script is carried out until all have arrived, since the one key that each of them names is never there.
        return Trouble(f"{where} is handing over the slot of this partition", sent=False)
    if isinstance(error, (foreign.ClusterDownError, foreign.MasterDownError)):
        return Trouble(f"{where} can't answer now: {text}", sent=False, elsewhere=True)
    if isinstance(error, (foreign.TryAgainError, foreign.BusyLoadingError)) or text.startswith(_NOT_NOW):
        return Trouble(f"{where} can't answer now: {text}", sent=False, elsewhere=text.startswith("UNBLOCKED"))
    return None


def _tls(text: str, where: str) -> NotConfigured | None:
    """What won't pass by waiting: a certificate that is not trusted, or not shown."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        found = re.search(r"certificate verify failed: ([^(\]]+)", text)
        why = found[1].strip().rstrip(".") if found else "not trusted"
        return NotConfigured(
            f"the certificate of {where} is refused ({why}): name its authority with ?ssl_ca_certs=FILE in the URL, and the host "
            "as the certificate does"
        )
    if re.search(r"certificate required|handshake.failure|UNKNOWN_CA|unknown ca", text, re.I):
        return NotConfigured(
            f"{where} refuses the certificate of this client, or wants one: "
            "name it with ?ssl_certfile=FILE&ssl_keyfile=FILE in the URL"
        )
    return None


def given_up(trouble: Trouble) -> CoordinatorError:
    """What the caller gets when the time for repeating is over."""
    if trouble.sent:
        return Unconfirmed(
            f"{trouble}; the call was sent and may have been carried out: make it again with the same ids or key"
        )
    return Unreachable(str(trouble))
