"""One trip to one node: its commands, its replies, and the check that enough replicas confirmed its writes. It does no I/O."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from coordinator.errors import NotConfigured
from coordinator.model.address import Address
from coordinator.store.script import Argument, Request
from coordinator.store.scripts import CONFIRM
from coordinator.store.transport.error_mapping import ScriptMissing, TransientError, map_error
from coordinator.store.transport.lane import Lane
from coordinator.store.transport.packets import Packet, pack, unpack

TRIP_SECONDS = 5.0  # the time limit of a trip, unless a wire has another one


class Trip:
    """A trip: some requests that are sent once, together, on one connection.

    Args:
        address: The server's address, for error messages.
        lane: The node, and the number of replicas that must confirm.
        requests: The requests.
        seconds: The time limit of the trip.
    """

    def __init__(self, address: Address, lane: Lane, requests: Sequence[Request], seconds: float) -> None:
        self._address, self._lane, self._count = address, lane, len(requests)
        self._packets = pack(requests)
        self._bare = address.scheme == "memory"
        self._marks, self._confirmation = 0, list[list[Argument]]()
        if lane.replicas:
            # One write for each partition is added, because WAIT waits for the last write of the connection. The success of any of
            # them is enough: the hash slot of one partition may be moving to another node.
            marks = pack([CONFIRM.call(at) for at in dict.fromkeys(request.at for request in requests)])
            # WAIT must time out before the trip does. Otherwise its answer is lost, and with it the number of replicas.
            wait: list[Argument] = ["WAIT", lane.replicas, max(1, round(min(seconds / 2, 1.0) * 1000))]
            self._marks = len(marks)
            self._confirmation = [*(mark.command(bare=self._bare, whole=True) for mark in marks), wait]
        self._confirmed: Any = 0

    def run(self) -> Generator[tuple[list[list[Argument]], list[Packet]], list[Any], list[Any]]:
        """Yield the commands to send, receive their replies, and return the answers.

        Scripts that the server does not have in its cache are sent a second time with their source.

        Yields:
            The commands, and the packets to which the first commands belong.

        Returns:
            A reply or an error for each request.
        """
        replies = yield self._commands(range(len(self._packets)), whole=False)
        answers = self._without_confirmation(replies)
        missing = [i for i, reply in enumerate(answers) if isinstance(reply, ScriptMissing)]
        if missing:
            replies = yield self._commands(missing, whole=True)
            for i, reply in zip(missing, self._without_confirmation(replies), strict=True):
                answers[i] = reply
        return [self._judge(answer) for answer in unpack(self._packets, answers, self._count)]

    def _commands(self, indices: Sequence[int], *, whole: bool) -> tuple[list[list[Argument]], list[Packet]]:
        packets = [self._packets[i] for i in indices]
        return [packet.command(bare=self._bare, whole=whole) for packet in packets] + self._confirmation, packets

    def _without_confirmation(self, replies: list[Any]) -> list[Any]:
        """Remove the replies to the confirmation commands, store how many replicas have confirmed, and return the other replies."""
        if not self._confirmation:
            return replies
        *answers, self._confirmed = replies
        marked = answers[-self._marks :]
        if all(isinstance(mark, Exception) for mark in marked):
            self._confirmed = marked[0]
        return answers[: -self._marks]

    def _judge(self, answer: Any) -> Any:
        """Return the answer to a request as it is, or an error if too few replicas have confirmed the trip's writes."""
        if isinstance(answer, Exception):
            return self.map_error(answer, sent=False)
        if isinstance(self._confirmed, Exception):
            return self._unconfirmed(self._confirmed)
        if self._lane.replicas and self._confirmed < self._lane.replicas:
            # A master that was cut off and replaced does not know that it was replaced. Its replicas follow the new master by now,
            # so the wire must search for the master again.
            few = f"{self._confirmed} of {self._lane.replicas} replicas of {self._address} confirmed the write"
            return TransientError(few, sent=True, rediscover=True)
        return answer

    def _unconfirmed(self, error: Exception) -> Exception:
        """Return the error for a call that was carried out before the confirmation failed.

        For example, the node may have become a replica between the call and the confirmation. An error that refuses the
        confirmation does not mean that the call itself was refused.
        """
        judged = self.map_error(error, sent=True)
        return judged if isinstance(judged, NotConfigured) else TransientError(str(judged), sent=True, rediscover=True)

    def map_error(self, error: Exception, *, sent: bool) -> Exception:
        """Return the error of this package for an error of redis-py that ended this trip."""
        return map_error(error, self._address, sent=sent, node=self._lane.node)
