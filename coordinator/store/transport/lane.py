"""One trip to one node, as commands and replies, and whether enough replicas have what it wrote. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from coordinator.errors import NotConfigured
from coordinator.model.address import Address, Node
from coordinator.store.script import Argument, Request
from coordinator.store.scripts import CONFIRM
from coordinator.store.transport.trip import Packet, pack, unpack
from coordinator.store.transport.trouble import Forgotten, Trouble, mapped


class Lane(NamedTuple):
    """Where a request goes, and how many replicas must have it: calls that wait for replicas have trips of their own."""

    node: Node
    replicas: int


class Trip:
    """One try of some requests on one connection, as commands and replies. Pure, no I/O."""

    def __init__(self, address: Address, lane: Lane, requests: Sequence[Request], seconds: float) -> None:
        self._address, self._lane, self._count = address, lane, len(requests)
        self._packets = pack(requests)
        self._bare = address.scheme == "memory"
        self._marks, self._last = 0, list[list[Argument]]()
        if lane.replicas:
            # one for each partition, any of which will do: the slot of one may be on its way to another node
            marks = pack([CONFIRM.call(at) for at in dict.fromkeys(request.at for request in requests)])
            # shorter than the trip: an answer must come, or nobody knows how far it got
            wait: list[Argument] = ["WAIT", lane.replicas, max(1, round(min(seconds / 2, 1.0) * 1000))]
            self._marks = len(marks)
            self._last = [*(mark.command(bare=self._bare, whole=True) for mark in marks), wait]
        self._confirmed: Any = 0

    def exchange(self) -> Generator[tuple[list[list[Argument]], list[Packet]], list[Any], list[Any]]:
        """Yields commands, and the packets that the first of them are of; is fed replies. The answers for the requests; scripts
        that the server forgot are sent whole."""
        replies = yield self._commands(range(len(self._packets)), whole=False)
        answers = self._received(replies)
        missing = [i for i, reply in enumerate(answers) if isinstance(reply, Forgotten)]
        if missing:
            replies = yield self._commands(missing, whole=True)
            for i, reply in zip(missing, self._received(replies), strict=True):
                answers[i] = reply
        return [self._judged(answer) for answer in unpack(self._packets, answers, self._count)]

    def _commands(self, indices: Sequence[int], *, whole: bool) -> tuple[list[list[Argument]], list[Packet]]:
        packets = [self._packets[i] for i in indices]
        return [packet.command(bare=self._bare, whole=whole) for packet in packets] + self._last, packets

    def _received(self, replies: list[Any]) -> list[Any]:
        if not self._last:
            return replies
        *answers, self._confirmed = replies
        marked = answers[-self._marks :]
        if all(isinstance(mark, Exception) for mark in marked):
            self._confirmed = marked[0]
        return answers[: -self._marks]

    def _judged(self, answer: Any) -> Any:
        """What is not on enough replicas is not done, whatever the master answered."""
        if isinstance(answer, Exception):
            return self.mapped(answer, sent=False)
        if isinstance(self._confirmed, Exception):
            return self._unsure(self._confirmed)
        if self._lane.replicas and self._confirmed < self._lane.replicas:
            # elsewhere: a master that was cut off and replaced does not know, and its replicas follow another one by now
            few = f"{self._confirmed} of {self._lane.replicas} replicas of {self._address} have confirmed it"
            return Trouble(few, sent=True, elsewhere=True)
        return answer

    def _unsure(self, error: Exception) -> Exception:
        """The call was carried out, and then the node could not go on: as one that was made a replica in between. A word that
        refuses what was not done yet says nothing of what was."""
        judged = self.mapped(error, sent=True)
        return judged if isinstance(judged, NotConfigured) else Trouble(str(judged), sent=True, elsewhere=True)

    def mapped(self, error: Exception, *, sent: bool) -> Exception:
        return mapped(error, self._address, sent=sent, node=self._lane.node)
