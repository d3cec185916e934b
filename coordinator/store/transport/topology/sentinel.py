"""Sentinel discovery: find the master of a Sentinel group. This module does no I/O."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

from coordinator.model.address import Address, Node
from coordinator.store.transport.error_mapping import TransientError
from coordinator.store.transport.topology.question import Question, Search, search_error

MASTER_CHECK_SECONDS = 10.0


class SentinelGroup:
    """The topology of a Sentinel group: servers that sentinels watch. All partitions are on the group's master.

    After an error of the master, the master is unknown until a search has found it. During a recheck, and while no
    sentinel answers a recheck, the known master stays in use.

    Attributes:
        stale: True if the sentinels must be asked for the master.
    """

    def __init__(self, address: Address) -> None:
        self._address, self._sentinels = address, list(address.nodes)
        self._master: Node | None = None
        self.stale = True

    def where(self, at: str) -> Node | None:
        """Return the master of the group, or None while it is unknown."""
        return self._master

    def doubt(self, node: Node) -> None:
        """Forget the master if the failed node is the master."""
        if node == self._master:
            self._master, self.stale = None, True

    def recheck(self) -> None:
        """Mark the topology as stale, so that the next search asks the sentinels. The known master stays in use until then."""
        self.stale = True

    def moved(self, slot: int, node: Node) -> None:
        """Do nothing: servers without hash slots never answer MOVED."""

    def search(self) -> Search:
        """Ask the sentinels for the master, and the named master for its role.

        This is a generator that yields the questions and receives the answers. A sentinel that was cut off together with an old
        master continues to name it, and the old master continues to report the role of a master. So an answer is used immediately
        only if most sentinels give it. Otherwise the answer with the latest epoch is used, as sentinels do themselves.

        Raises:
            TransientError: No usable master was found, and none was known before.
        """
        why: object = ""
        named: dict[Node, list[Node]] = {}  # each named master, and the sentinels that name it
        roles: dict[Node, object] = {}  # why a named master cannot be used, or None if it can
        for sentinel in list(self._sentinels):
            reply = yield self._ask(sentinel, "GET-MASTER-ADDR-BY-NAME")
            if not isinstance(reply, list):
                service = self._address.service
                why = reply or f"sentinel {sentinel} knows no master named {service!r}: check the name in the URL"
                continue
            master = Node(reply[0].decode().lower(), int(reply[1]))
            named.setdefault(master, []).append(sentinel)
            if 2 * len(named[master]) > len(self._sentinels) and master not in roles:
                roles[master] = yield from _check_role(master)
                if not roles[master]:
                    return self._learn(master, named)
        latest = yield from self._latest(named)
        for master in latest:
            if master not in roles:
                roles[master] = yield from _check_role(master)
            if not roles[master]:
                return self._learn(master, named)
            why = roles[master]
        # A master that was replaced is not used any longer, even if its successor can't be reached from here: writes to
        # the old master would be lost.
        if latest and self._master not in latest:
            self._master = None
        if self._master is None:
            raise search_error(why, f"{self._address} has no master now")
        self.stale = False

    def _ask(self, sentinel: Node, what: str) -> Question:
        return Question(sentinel, ("SENTINEL", what, self._address.service), sentinel=True)

    def _latest(self, named: Mapping[Node, Sequence[Node]]) -> Generator[Question, Any, list[Node]]:
        """Return those of the named masters that have the latest epoch. There are several if sentinels report no epochs.

        Args:
            named: Each master that a sentinel has named, with these sentinels.
        """
        if len(named) < 2:
            return list(named)
        epochs: dict[Node, int] = {}
        for master, sentinels in named.items():
            state = yield self._ask(sentinels[0], "MASTER")
            fields = dict(zip(state[::2], state[1::2], strict=False)) if isinstance(state, list) else {}
            epochs[master] = int(fields.get(b"config-epoch", 0))
        return [master for master in named if epochs[master] == max(epochs.values())]

    def _learn(self, master: Node, named: Mapping[Node, Sequence[Node]]) -> None:
        self._master, self.stale = master, False
        right, answered = named[master], [sentinel for some in named.values() for sentinel in some]
        # The next search asks the sentinels first that named this master. It asks silent sentinels last, because it has to
        # wait for their timeouts.
        self._sentinels.sort(key=lambda sentinel: (sentinel not in right, sentinel not in answered))


def _check_role(master: Node) -> Generator[Question, Any, object]:
    """Return the reason why a server that a sentinel names can't be used; None if the server can be used.

    The sentinel may not know yet that the server is gone, or that it is a replica now. If this client has no right to send ROLE, it
    relies on the sentinel.
    """
    role = yield Question(master, ("ROLE",))
    if isinstance(role, TransientError):
        return role
    return f"{master} is no longer a master" if isinstance(role, list) and role[0] != b"master" else None


class _Rechecked(Protocol):
    def recheck(self) -> None: ...


class MasterCheckTimer:
    """A timer that starts a check of a Sentinel group's master every MASTER_CHECK_SECONDS. Other topologies need no check.

    A master that was cut off from the network and replaced may still answer its clients. A client that does not wait for replicas
    would keep using that master until it is connected again. A master of a Cluster stops by itself in this case.
    """

    def __init__(self, topology: _Rechecked) -> None:
        self._topology, self._wanted = topology, isinstance(topology, SentinelGroup)
        self._next = 0.0

    def start_if_due(self, now: float) -> bool:
        """Mark the topology as stale if a check is due.

        Args:
            now: The present time of a monotonic clock.

        Returns:
            True if the caller should search now, in the background: the known master stays in use meanwhile.
        """
        if not self._wanted or now < self._next:
            return False
        first, self._next = self._next == 0.0, now + MASTER_CHECK_SECONDS
        if first:
            return False  # the master was found a moment ago, or a search for it is about to begin
        self._topology.recheck()
        return True
