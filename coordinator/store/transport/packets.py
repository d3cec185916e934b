"""Merge requests into few commands, and split the replies again. This module does no I/O.

Calls with the same script, partition and fixed arguments become one command that takes a list of items and answers item by item.
One script call for a hundred runs takes the client a tenth of the time of a hundred pipelined calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.errors import BadCall
from coordinator.store.script import Argument, Call, Request

MOST_ITEMS = 500
MOST_BYTES = 1024 * 1024


@dataclass(slots=True)
class Packet:
    """One command that is sent to a server, with the requests that are merged into it.

    Attributes:
        request: The first request of the command.
        carries: The indices of the requests that are merged into the command.
        items: The items of the merged calls.
        size: The approximate size of the merged calls, in bytes.
    """

    request: Request
    carries: list[int]
    items: list[tuple[Argument, ...]] = field(default_factory=list)
    size: int = 0

    def command(self, *, bare: bool, whole: bool) -> list[Argument]:
        """Return the command as a list of its name and its arguments.

        Args:
            bare: Leave out the script's first line (`#!lua`), which fakeredis cannot compile.
            whole: Send the script's source with EVAL. Otherwise send its hash with EVALSHA.
        """
        request = self.request
        if not isinstance(request, Call):
            return list(request.arguments)
        script = request.script
        if whole:
            command: list[Argument] = ["EVAL", script.text_without_shebang if bare else script.text, 1, request.at]
        else:
            command = ["EVALSHA", script.sha_without_shebang if bare else script.sha, 1, request.at]
        command += request.fixed
        for item in self.items:
            command += item
        return command

    def spread(self, reply: Any) -> list[Any]:
        """Return the part of the reply for each merged request, in the order of `carries`."""
        if not isinstance(self.request, Call) or not self.request.merges or isinstance(reply, Exception):
            return [reply] * len(self.carries)
        if not isinstance(reply, list) or len(reply) != len(self.items):
            wrong = f"script {self.request.script.name} must answer {len(self.items)} items, but answered {reply!r:.80}"
            return [BadCall(wrong)] * len(self.carries)
        return reply


def pack(requests: Sequence[Request]) -> list[Packet]:
    """Merge requests into as few packets as possible, and return the packets in the order of their first requests."""
    if len(requests) == 1:  # the usual case of a producer, without a search for requests to merge
        one = requests[0]
        return [Packet(one, [0], list(one.items) if isinstance(one, Call) else [])]
    packets: list[Packet] = []
    open_packets: dict[tuple[object, ...], Packet] = {}
    for index, request in enumerate(requests):
        if not isinstance(request, Call) or not request.merges:
            items = list(request.items) if isinstance(request, Call) else []
            packets.append(Packet(request, [index], items))
            continue
        key = (request.script, request.at, request.fixed)
        size = request.size
        packet = open_packets.get(key)
        if packet is None or len(packet.items) >= MOST_ITEMS or packet.size + size > MOST_BYTES:
            packet = open_packets[key] = Packet(request, [])
            packets.append(packet)
        packet.carries.append(index)
        packet.items.append(request.items[0])
        packet.size += size
    return packets


def count_next_trip(waiting: Sequence[Request]) -> int:
    """Return the number of waiting requests that fit into the next trip.

    A trip ends before its size exceeds MOST_BYTES, and before a second request about the same run.
    """
    runs: set[str] = set()
    size = 0
    for index, request in enumerate(waiting):
        size += request.size
        if index and size > MOST_BYTES:
            return index
        if request.run is not None:
            if request.run in runs:
                return index
            runs.add(request.run)
    return len(waiting)


def unpack(packets: Sequence[Packet], replies: Sequence[Any], count: int) -> list[Any]:
    """Return the reply for each of `count` requests, from the replies to their packets."""
    if count == 1:
        return packets[0].spread(replies[0])
    answers: list[Any] = [None] * count
    for packet, reply in zip(packets, replies, strict=True):
        for index, part in zip(packet.carries, packet.spread(reply), strict=True):
            answers[index] = part
    return answers
