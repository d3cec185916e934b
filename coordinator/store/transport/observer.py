"""Who watches the trips to the server: nobody, unless a program says otherwise. The fault lab writes its histories here.

An observer sees packets before they are written to the socket, when they are written, and their replies; where replicas were waited
for, also how many have them, in the last reply of all. One that raises or ends the process does so at exactly that point, which is
what the lab wants of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from coordinator.store.transport.trip import Packet


class Watch(Protocol):
    """One exchange under observation. Where it ends without `answered`, what became of it is unknown."""

    def sent(self) -> None: ...
    def answered(self, replies: Sequence[Any]) -> None: ...
    def __enter__(self) -> Watch: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Observer(Protocol):
    def __call__(self, packets: Sequence[Packet]) -> Watch: ...


class _Nobody:
    """Sees nothing, and costs nothing that could be measured."""

    __slots__ = ()

    def __call__(self, packets: Sequence[Packet]) -> Watch:
        return self

    def sent(self) -> None:
        return

    def answered(self, replies: Sequence[Any]) -> None:
        return

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


_observer: Observer = _Nobody()


def observe(observer: Observer | None) -> None:
    """From now on this one watches every exchange of the process; None: nobody does."""
    global _observer  # noqa: PLW0603  # of the process, as its connections are
    _observer = observer or _Nobody()


def watch(packets: Sequence[Packet]) -> Watch:
    return _observer(packets)
