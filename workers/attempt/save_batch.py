"""Send the saves of all attempts of a process in few requests.

A process may have thousands of live runs, and each of them saves at the end of its turns. A task and a request for each of these
saves cost more than the save itself. So a saver that may save now enters the batch, and the batch asks it for its changes when the
batch is sent. The first save is sent in the same turn of the event loop. Saves within GATHER_SECONDS after that share the next
batch, unless a handler waits for one of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from coordinator.errors import Unreadable
from coordinator.store.keys import Keys
from coordinator.store.plans import attempts as attempt_plans
from coordinator.store.transport.wire import AsyncWire, drive_async

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.01  # the shortest time between two batches, unless a handler waits for its save
MOST_SAVES = 200  # in one request
MOST_BYTES = 256 * 1024  # of the saves in one request, except for a single larger one

Item = tuple[str, str, bytes]


class Save(Protocol):
    """A save that was sent with a batch."""

    item: Item

    def answered(self, word: str, progress: int) -> None:
        """Handle the server's answer word, and the run's progress counter after the save."""

    def failed(self, error: Exception) -> None:
        """Handle the failure of the request: the server did not answer, or it refused the whole request."""


class Member(Protocol):
    """A saver that waits for the next batch."""

    keys: Keys

    def take_save(self) -> Save | None:
        """Return the save of the newest cut, or None if the saver sends nothing with this batch."""


class SaveBatch:
    """The savers of a process that have something to save now.

    Args:
        wire: The connection to the server.
        gather_seconds: The shortest time between two batches, unless a handler waits for its save.
    """

    def __init__(self, wire: AsyncWire, gather_seconds: float = GATHER_SECONDS) -> None:
        self._wire, self._gather_seconds = wire, gather_seconds
        self._members: list[Member] = []
        self._timer: asyncio.Handle | None = None
        self._next = 0.0  # the time of the event loop from which on the next batch may be sent
        self._under_way: set[asyncio.Task[None]] = set()  # the event loop itself keeps no reference to a task
        self._sends_soon = False  # whether the timer sends the batch in this turn of the event loop
        self._context = contextvars.copy_context()  # the worker's, because a batch belongs to no single run

    def add(self, member: Member, *, at_once: bool) -> None:
        """Add a saver to the next batch.

        Args:
            member: The saver.
            at_once: True if a handler waits for the save. The batch is then sent in this turn of the event loop.
        """
        self._members.append(member)
        if at_once:
            self.hurry()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._next:
                self.hurry()
            else:
                self._timer = loop.call_at(self._next, self._send, context=self._context)

    def hurry(self) -> None:
        """Send the next batch in this turn of the event loop."""
        if self._sends_soon:
            return  # a new timer would run later than the one that is there
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_soon(self._send, context=self._context)
        self._sends_soon = True

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._sends_soon = None, False
        self._next = loop.time() + self._gather_seconds
        members, self._members = self._members, []
        filling: dict[str, tuple[list[Save], int]] = {}  # by partition: the saves of its next request, and their bytes
        for member in members:
            try:
                save = member.take_save()
            except Exception:  # one run must not keep the others from being saved
                logger.exception("a run could not be added to a batch of saves")
                continue
            if save is None:
                continue
            at, size = member.keys.at, len(save.item[2])
            saves, total = filling.get(at, ([], 0))
            if saves and (len(saves) >= MOST_SAVES or total + size > MOST_BYTES):
                self._start(at, saves)
                saves, total = [], 0
            saves.append(save)
            filling[at] = saves, total + size
        for partition, (saves, _) in filling.items():
            self._start(partition, saves)

    def _start(self, at: str, saves: Sequence[Save]) -> None:
        task = asyncio.get_running_loop().create_task(self._ask(at, saves))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _ask(self, at: str, saves: Sequence[Save]) -> None:
        saves = [save for save in saves if save.item[1]]  # the save of a saver that was closed meanwhile is empty
        if not saves:
            return
        plan = attempt_plans.checkpoints(at, [save.item for save in saves])
        try:
            answers = await drive_async(self._wire, plan, give_up=lambda: True)
            if len(answers) != len(saves):
                raise Unreadable(f"the server answered {len(answers)} of {len(saves)} saves")
        except Exception as error:  # noqa: BLE001  # without an answer, a saver would wait for ever
            for save in saves:
                _handle(save, partial(save.failed, error))
            return
        for save, (word, progress) in zip(saves, answers, strict=True):
            _handle(save, partial(save.answered, word, progress))


def _handle(save: Save, take: Callable[[], None]) -> None:
    try:
        take()
    except Exception:  # one run must not keep the others from learning their answers
        logger.exception("the answer to a save of run %s could not be handled", save.item[0])
