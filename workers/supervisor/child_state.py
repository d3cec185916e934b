"""The states of a worker process as its supervisor sees them, and the events that change them.

This module is the only one that changes a state. `TRANSITIONS` is the whole table: an event that the table does not list for
the current state changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

NOBODY = "nobody"  # the value of `blame` of `abandon` if no run gets a strike


class ChildState(Enum):
    """The state of a worker process.

    The last five states say how the process ended. A later report or kill may replace one of them by another (see `TRANSITIONS`).
    """

    STARTING = "starting"  # it imports the handlers, opens their resources and joins
    READY = "ready"  # the server has answered its first claim
    DRAINING = "draining"  # the supervisor asked it to end; its runs have their grace
    HURRYING = "hurrying"  # the supervisor asked it to end without grace
    LEFT = "left"  # it said, or the server found, that it holds no run any more
    UNFINISHED = "unfinished"  # it said that it drained, but may still hold runs
    STOPPED = "stopped"  # the supervisor asked it to end while it was starting, and it ended before it joined
    KILLED = "killed"  # the supervisor killed it
    DIED = "died"  # it ended without a last report: it crashed, was killed, or never began


class ChildEvent(Enum):
    """The events that change the state of a worker process."""

    BECAME_READY = "became ready"
    DRAIN_REQUESTED = "drain requested"
    HURRY_REQUESTED = "hurry requested"
    SAID_LEFT = "said left"
    SAID_UNFINISHED = "said unfinished"
    STOPPED_EARLY = "stopped early"  # SIGTERM ended it before it joined
    KILLED_AS_OVERDUE = "killed as overdue"  # it did not end in time
    KILLED_AS_BLOCKED = "killed as blocked"  # a run blocked its event loop
    EXITED = "exited"
    FOUND_EMPTY = "found empty"  # the server has no run of the process


_S, _E = ChildState, ChildEvent
_RUNNING = (_S.STARTING, _S.READY, _S.DRAINING, _S.HURRYING)

TRANSITIONS: Mapping[ChildEvent, Mapping[ChildState, ChildState]] = MappingProxyType(
    {
        _E.BECAME_READY: {_S.STARTING: _S.READY},
        _E.DRAIN_REQUESTED: {_S.STARTING: _S.DRAINING, _S.READY: _S.DRAINING},
        _E.HURRY_REQUESTED: {_S.STARTING: _S.HURRYING, _S.READY: _S.HURRYING, _S.DRAINING: _S.HURRYING},
        # The last report of a process counts, even if it is read after the kill.
        _E.SAID_LEFT: dict.fromkeys((*_RUNNING, _S.UNFINISHED, _S.KILLED), _S.LEFT),
        _E.SAID_UNFINISHED: dict.fromkeys((*_RUNNING, _S.KILLED), _S.UNFINISHED),
        _E.KILLED_AS_OVERDUE: dict.fromkeys(_RUNNING, _S.KILLED),
        _E.KILLED_AS_BLOCKED: dict.fromkeys((*_RUNNING, _S.LEFT, _S.UNFINISHED), _S.KILLED),
        # The supervisor sends SIGTERM with its request. If the supervisor did not ask, another program sent the SIGTERM.
        _E.STOPPED_EARLY: dict.fromkeys((_S.DRAINING, _S.HURRYING), _S.STOPPED),
        _E.EXITED: dict.fromkeys(_RUNNING, _S.DIED),
        _E.FOUND_EMPTY: {_S.UNFINISHED: _S.LEFT},
    }
)


def next_state(state: ChildState, event: ChildEvent) -> ChildState:
    """Return the state after an event. An event without an entry in the table changes nothing."""
    return TRANSITIONS[event].get(state, state)


class ChildLifecycle:
    """The current state of one worker process, with events for tasks that wait for a change.

    The three `asyncio.Event`s stay set. So a late report counts too, for example that a process is ready which already drains.
    """

    def __init__(self) -> None:
        self.state = ChildState.STARTING
        self.became_ready = asyncio.Event()
        self.drain_requested = asyncio.Event()
        self.hurry_requested = asyncio.Event()
        self._blocking_run = ""

    def record_ready(self) -> None:
        """Record that the server answered the first claim of the process."""
        self.became_ready.set()
        self._apply(ChildEvent.BECAME_READY)

    def request_drain(self) -> bool:
        """Record that the supervisor asks the process to end. Return False if the supervisor had already asked."""
        first = not self.drain_requested.is_set()
        self.drain_requested.set()
        self._apply(ChildEvent.DRAIN_REQUESTED)
        return first

    def request_hurry(self) -> bool:
        """Record that the supervisor asks the process to end without grace. Return False if the supervisor had already asked."""
        first = not self.hurry_requested.is_set()
        self.hurry_requested.set()
        self._apply(ChildEvent.HURRY_REQUESTED)
        return first

    def record_left(self) -> None:
        """Record that the process has reported that it drained and holds no run any more."""
        self._apply(ChildEvent.SAID_LEFT)

    def record_unfinished(self) -> None:
        """Record that the process has reported that it drained and may still hold runs."""
        self._apply(ChildEvent.SAID_UNFINISHED)

    def record_early_stop(self) -> None:
        """Record that SIGTERM ended the process before it joined."""
        self._apply(ChildEvent.STOPPED_EARLY)

    def record_overdue_kill(self) -> None:
        """Record that the supervisor killed the process because it did not end in time."""
        self._apply(ChildEvent.KILLED_AS_OVERDUE)

    def record_blocked_kill(self, run: str) -> None:
        """Record that the supervisor killed the process because this run blocked its event loop."""
        self._blocking_run = run
        self._apply(ChildEvent.KILLED_AS_BLOCKED)

    def record_exit(self) -> None:
        """Record that the process has ended and that the supervisor has read its last reports."""
        self._apply(ChildEvent.EXITED)

    def record_empty(self) -> None:
        """Record that the server found no run of a process that had reported that it may still hold runs."""
        self._apply(ChildEvent.FOUND_EMPTY)

    @property
    def blame(self) -> str:
        """The only run that gets a strike for the end of the process.

        The value is `nobody` if no run gets a strike, and empty if each run of the process gets one.
        """
        match self.state:
            case ChildState.LEFT | ChildState.UNFINISHED | ChildState.STOPPED:
                return NOBODY
            case ChildState.KILLED:
                return self._blocking_run or NOBODY
            case _:
                return ""

    def _apply(self, event: ChildEvent) -> None:
        self.state = next_state(self.state, event)
