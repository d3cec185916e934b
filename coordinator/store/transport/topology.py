"""Which node serves a partition, and how to find out: one server, a Sentinel group, a Cluster.

A search is a generator that yields questions and is fed the answers or their errors, so that threads and event loops share it.
redis-py's own Sentinel and Cluster clients are not used: they retry by themselves, load a script on every master at once, and know
no pipelines of scripts; all that is needed here is where a partition is.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.errors import CoordinatorError
from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Argument
from coordinator.store.transport.slots import masters, slot_of
from coordinator.store.transport.trouble import Trouble


@dataclass(frozen=True, slots=True)
class Question:
    """A command for one node, asked while searching."""

    node: Node
    command: tuple[Argument, ...]
    sentinel: bool = False


Search = Generator[Question, Any, None]


class One:
    """A server that stands alone: it is where its address says."""

    stale = False

    def where(self, at: str) -> Node | None:
        return HERE

    def doubt(self, node: Node) -> None:
        """It may come back, and nobody else can say more."""

    def look_again(self) -> None:
        """There is nobody to ask."""

    def moved(self, slot: int, node: Node) -> None:
        """Never said by a server that stands alone."""

    def search(self) -> Search:
        yield from ()


class Group:
    """Servers watched by sentinels. The master is asked for anew whenever there was trouble with it; where it is only looked for
    again, it stays in use meanwhile, and where no sentinel answers."""

    def __init__(self, address: Address) -> None:
        self._address, self._sentinels = address, list(address.nodes)
        self._master: Node | None = None
        self.stale = True

    def where(self, at: str) -> Node | None:
        return self._master

    def doubt(self, node: Node) -> None:
        if node == self._master:
            self._master, self.stale = None, True

    def look_again(self) -> None:
        self.stale = True

    def moved(self, slot: int, node: Node) -> None:
        """Never said by servers without slots."""

    def search(self) -> Search:
        """A sentinel that is cut off together with a master goes on to name it, and the master to say that it is one. So what one
        says counts where most say the same; where they don't, the latest epoch does, as among sentinels themselves."""
        why: object = ""
        named: dict[Node, list[Node]] = {}  # each master, and who names it
        roles: dict[Node, object] = {}  # what is wrong with it; nothing where it is one
        for sentinel in list(self._sentinels):
            reply = yield self._ask(sentinel, "GET-MASTER-ADDR-BY-NAME")
            if not isinstance(reply, list):
                why = reply or f"{sentinel} knows no master {self._address.service!r}"
                continue
            master = Node(reply[0].decode().lower(), int(reply[1]))
            named.setdefault(master, []).append(sentinel)
            if 2 * len(named[master]) > len(self._sentinels) and master not in roles:
                roles[master] = yield from _wrong_with(master)
                if not roles[master]:
                    return self._learn(master, named)
        latest = yield from self._latest(named)
        for master in latest:
            if master not in roles:
                roles[master] = yield from _wrong_with(master)
            if not roles[master]:
                return self._learn(master, named)
            why = roles[master]
        # one that was replaced is left, also where its successor can't be reached from here: what it took now would be lost
        if latest and self._master not in latest:
            self._master = None
        if self._master is None:
            raise _in_vain(why, f"{self._address} has no master now")
        self.stale = False

    def _ask(self, sentinel: Node, what: str) -> Question:
        return Question(sentinel, ("SENTINEL", what, self._address.service), sentinel=True)

    def _latest(self, named: Mapping[Node, Sequence[Node]]) -> Generator[Question, Any, list[Node]]:
        """The master of the latest epoch; several where sentinels don't tell."""
        if len(named) < 2:
            return list(named)
        epochs: dict[Node, int] = {}
        for master, sentinels in named.items():
            state = yield self._ask(sentinels[0], "MASTER")
            words = dict(zip(state[::2], state[1::2], strict=False)) if isinstance(state, list) else {}
            epochs[master] = int(words.get(b"config-epoch", 0))
        return [master for master in named if epochs[master] == max(epochs.values())]

    def _learn(self, master: Node, named: Mapping[Node, Sequence[Node]]) -> None:
        self._master, self.stale = master, False
        right, answered = named[master], [sentinel for some in named.values() for sentinel in some]
        # those who were right are asked first next time; who was silent is last, for it is waited for
        self._sentinels.sort(key=lambda sentinel: (sentinel not in right, sentinel not in answered))


def _wrong_with(master: Node) -> Generator[Question, Any, object]:
    """Why a server that a sentinel names is not to be used: it may not know yet that the master is gone, or is one no more. Who may
    not ask for the role trusts it."""
    role = yield Question(master, ("ROLE",))
    if isinstance(role, Trouble):
        return role
    return f"{master} is no master any more" if isinstance(role, list) and role[0] != b"master" else None


class Cluster:
    """Nodes that share the slots. What is known stays in use while it is asked for anew: only what moved is in trouble."""

    def __init__(self, address: Address) -> None:
        self._address, self._nodes = address, list(address.nodes)
        self._masters: list[Node | None] = []
        self._doubted: set[Node] = set()
        self.stale = True

    def where(self, at: str) -> Node | None:
        node = self._masters[slot_of(at)] if self._masters else None
        if node is None:  # a slot that nobody served when it was asked for may be served by now
            self.stale = True
        return node

    def doubt(self, node: Node) -> None:
        self.stale = True
        self._doubted.add(node)
        if node in self._nodes:  # it is asked last
            self._nodes.remove(node)
            self._nodes.append(node)

    def look_again(self) -> None:
        self.stale = True

    def moved(self, slot: int, node: Node) -> None:
        self.stale = True
        if self._masters:
            self._masters[slot] = node
        # it is asked first: others may not have heard of it yet, and would send us back
        self._nodes = [node, *(other for other in self._nodes if other != node)]

    def search(self) -> Search:
        """A node that is cut off from the others goes on to tell what was true before. So one who still names a master that did not
        answer us counts only where nobody knows better."""
        why: object = ""
        oldest: tuple[list[Node | None], Node] | None = None
        doubted = frozenset(self._doubted)
        for node in list(self._nodes):
            if oldest is not None and node in doubted:
                break  # it did not answer just now, and others did
            reply = yield Question(node, ("CLUSTER", "SLOTS"))
            if isinstance(reply, Exception) or not reply:
                why = reply or f"{node} knows of no slots"
                continue
            found = masters(reply, node)
            if doubted.isdisjoint(found):
                return self._learn(found, node)
            oldest = oldest or (found, node)
        if oldest is None:
            raise _in_vain(why, f"no node of {self._address} tells where the slots are")
        self._learn(*oldest)

    def _learn(self, found: list[Node | None], asked: Node) -> None:
        self._masters, self.stale = found, False
        self._doubted.clear()
        # the one that answered first, then the masters, then those that the URL names
        self._nodes = list(
            dict.fromkeys([asked, *(node for node in dict.fromkeys(found) if node), *self._address.nodes])
        )


def _in_vain(why: object, what: str) -> Exception:
    """A search that nobody answered may be made again; one that was refused needs another password or certificate."""
    return why if isinstance(why, CoordinatorError) else Trouble(f"{what}: {why}", sent=False)


Topology = One | Group | Cluster
LOOK_SECONDS = 10.0


class Lookout:
    """Has the master of a Sentinel group looked for again now and then: one that was cut off and replaced answers as before, and
    who does not wait for replicas would stay with it for as long as that lasts. A Cluster's stops by itself."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self._wanted = topology, isinstance(topology, Group)
        self._next = 0.0

    def look(self, now: float) -> bool:
        """Whether it is time; then what is known is stale, and is to be asked for beside what is under way."""
        if not self._wanted or now < self._next:
            return False
        first, self._next = self._next == 0.0, now + LOOK_SECONDS
        if first:
            return False  # it has only just been found, or will be
        self._topology.look_again()
        return True


def topology(address: Address) -> Topology:
    if address.kind == "sentinel":
        return Group(address)
    return Cluster(address) if address.kind == "cluster" else One()
