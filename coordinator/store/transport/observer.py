"""A hook for test programs: an observer is called for every exchange with a server. The fault lab records histories with it.

The observer sees the packets before they are written to the socket, when they are written, and their replies. If the
trip waited for replicas, the last reply is the number of replicas. An observer may raise, or end the process, to cause
a failure at that exact point.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol

from coordinator.store.transport.packets import Packet


class ObservedExchange(Protocol):
    """An exchange that an observer watches. If it ends without a call of `answered`, its outcome is unknown."""

    def sent(self) -> None:
        """Record that the commands were written to the socket."""

    def answered(self, replies: Sequence[Any]) -> None:
        """Record the replies to the commands of the exchange."""

    def __enter__(self) -> ObservedExchange: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Observer(Protocol):
    """A function that is called at the start of each exchange, before any byte is written."""

    def __call__(self, packets: Sequence[Packet]) -> ObservedExchange:
        """Return the object that watches this exchange.

        Args:
            packets: The packets that the exchange sends.
        """
        ...


class _NoObserver:
    """The default observer, which ignores every exchange."""

    __slots__ = ()

    def __call__(self, packets: Sequence[Packet]) -> ObservedExchange:
        return self

    def sent(self) -> None:
        return

    def answered(self, replies: Sequence[Any]) -> None:
        return

    def __enter__(self) -> ObservedExchange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


_observer: Observer = _NoObserver()


def install_observer(observer: Observer | None) -> None:
    """Call the observer for every exchange of this process from now on. None removes the observer."""
    global _observer  # noqa: PLW0603  # one for the process, as its connections are
    _observer = observer or _NoObserver()


def start_exchange(packets: Sequence[Packet]) -> ObservedExchange:
    """Tell the observer that an exchange begins. Return the observed exchange, which is a context manager."""
    return _observer(packets)
