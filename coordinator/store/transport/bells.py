"""Waiting for a bell: on a connection of its own, since a blocked one serves nobody else.

A call may wait at the server, behind the bell: it is carried out when a token is there, one trip sooner than by who hears of it.

Lists of several partitions can be waited for together where one server has them. In a Cluster each partition has a wait of its own,
and the first one that brings a token is answered; the others stay, so that no token on its way to them is lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from coordinator.clock import SystemClock
from coordinator.errors import BadCall, Unreachable
from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Argument, Call, Request
from coordinator.store.transport.connections import (
    CONNECT_SECONDS,
    async_pool,
    exchange,
    exchange_async,
    hang_up,
    search,
    search_async,
    sync_pool,
)
from coordinator.store.transport.slots import tag_of
from coordinator.store.transport.topology import Lookout, topology
from coordinator.store.transport.trip import pack
from coordinator.store.transport.trouble import Forgotten, Moved, Trouble, given_up, mapped

T = TypeVar("T")
Plan = Generator[Request | list[Request], Any, T]
Token = tuple[str, bytes]
MOST_HOPS = 3
_clock = SystemClock()


class AsyncBell:
    """Waits, in an event loop, until one of some lists has a token."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._topology = topology(address)
        self._lookout = Lookout(self._topology)
        self._looking: asyncio.Task[None] | None = None
        self._pools: dict[Node, Any] = {}
        self._pending: dict[str, asyncio.Task[Token | None]] = {}
        self._closed = False

    async def wait(self, keys: Sequence[str], seconds: float) -> Token | None:
        by_tag: dict[str, list[str]] = {}
        for key in keys:
            by_tag.setdefault(tag_of(key) if self.address.kind == "cluster" else "", []).append(key)
        if len(by_tag) == 1:
            token: Token | None = await self._one(keys, seconds)
            return token
        return await self._first(by_tag, seconds)

    async def ask(self, keys: Sequence[str], seconds: float, plan: Plan[T]) -> T:
        """Carries a plan of one call to its end: the server waits until one of some lists of its partition has a token, or the time
        is over, and then carries it out. Given up without an answer, it may still be carried out later."""
        call = next(plan)
        assert isinstance(call, Call)
        reply = await self._one(keys, seconds, call)
        try:
            plan.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value
        raise BadCall("only a plan of one call can wait behind a bell")

    async def _first(self, by_tag: dict[str, list[str]], seconds: float) -> Token | None:
        """The first token of any partition. One that can't be reached holds up nobody, unless all can't."""
        loop = asyncio.get_running_loop()
        for tag, keys in by_tag.items():
            if tag not in self._pending:
                self._pending[tag] = loop.create_task(self._one(keys, seconds))
        error: BaseException | None = None
        answered = False
        until = loop.time() + seconds
        while self._pending:
            done, _ = await asyncio.wait(
                self._pending.values(), timeout=max(0.0, until - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return None
            for tag, task in list(self._pending.items()):
                if not task.done():
                    continue
                del self._pending[tag]
                if (failure := task.exception()) is not None:
                    error = failure
                elif (token := task.result()) is not None:
                    return token
                else:
                    answered = True
        if error is not None and not answered:
            raise error
        return None

    async def _one(self, keys: Sequence[str], seconds: float, call: Call | None = None) -> Any:
        """A token of lists that one node has; or the answer to the call behind it."""
        trouble = Trouble(f"no node of {self.address} serves this partition", sent=False)
        for _ in range(MOST_HOPS):
            node = HERE
            try:
                found = await self._find(keys[0])
                if found is None:
                    break
                node = found
                return await self._blocked(node, keys, seconds, call)
            except Exception as error:  # noqa: BLE001  # whatever it is, there was no token
                trouble = _as_trouble(mapped(error, self.address, sent=call is not None, node=node))
            if isinstance(trouble, Moved):
                self._topology.moved(trouble.slot, trouble.node)
                continue
            if trouble.elsewhere:
                self._topology.doubt(node)
            break
        raise given_up(trouble) from None

    async def _find(self, key: str) -> Node | None:
        """The node that has a list. One that is only looked for again is waited at meanwhile: the next wait is where it is then."""
        loop = asyncio.get_running_loop()
        known = self._topology.where(key)
        if self._lookout.look(loop.time()) and known is not None:
            self._looking = self._looking or loop.create_task(self._look())
            return known
        if self._topology.stale and (self._looking is None or known is None):
            await search_async(self.address, self._topology)
        return self._topology.where(key)

    async def _look(self) -> None:
        try:
            await search_async(self.address, self._topology)
        except Exception:  # noqa: BLE001  # there was trouble meanwhile: who waits next searches, and says why it is in vain
            pass
        finally:
            self._looking = None

    async def _blocked(self, node: Node, keys: Sequence[str], seconds: float, call: Call | None) -> Any:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = async_pool(self.address, node)
        packets = [] if call is None else pack([call])
        commands: list[list[Argument]] = [
            ["BLPOP", *keys, seconds],
            *(packet.command(bare=False, whole=False) for packet in packets),
        ]
        # a connection that died in silence is dropped some seconds after the server should have answered
        async with asyncio.timeout(seconds + CONNECT_SECONDS):
            connection = await pool.get_connection()
            try:
                _open(self._closed)
                token, *answers = await exchange_async(connection, commands, packets, ahead=1)
                if any(isinstance(answer, Forgotten) for answer in answers):  # no second wait: the token may be taken
                    _open(self._closed)
                    whole = [packet.command(bare=False, whole=True) for packet in packets]
                    answers = await exchange_async(connection, whole, packets)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                await pool.release(connection)
        if not answers:
            return _token(token)
        for reply in (token, *answers):
            if isinstance(reply, Exception):
                raise reply
        return answers[0]

    async def close(self) -> None:
        self._closed = True
        tasks: list[asyncio.Task[Any]] = [*self._pending.values(), *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await hang_up(self._pools.values())


class Bell:
    """Waits, in a thread, until one of some lists has a token. `close` may be called by another thread, and ends the wait."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._topology = topology(address)
        self._lookout = Lookout(self._topology)
        self._pools: dict[tuple[Node, float], Any] = {}
        self._loop: _Loop | None = None
        self._closed = False

    def wait(self, keys: Sequence[str], seconds: float) -> Token | None:
        if self.address.kind == "cluster":
            self._loop = self._loop or _Loop(self.address)
            return self._loop.wait(keys, seconds)
        node = HERE
        try:
            self._lookout.look(_clock.monotonic())
            if self._topology.stale:
                search(self.address, self._topology)
            node = self._topology.where(keys[0]) or HERE
            return self._blocked(node, keys, seconds)
        except Exception as error:  # noqa: BLE001  # whatever it is, there was no token
            trouble = _as_trouble(mapped(error, self.address, sent=False, node=node))
        self._topology.doubt(node)
        raise given_up(trouble)

    def _blocked(self, node: Node, keys: Sequence[str], seconds: float) -> Token | None:
        # a connection that died in silence is dropped some seconds after the server should have answered
        limit = seconds + CONNECT_SECONDS
        pool = self._pools.get((node, limit))
        if pool is None:
            pool = self._pools[node, limit] = sync_pool(self.address, node, limit)
        connection = pool.get_connection()
        try:
            _open(self._closed)
            (reply,) = exchange(connection, [["BLPOP", *keys, seconds]])
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        return _token(reply)

    def close(self) -> None:
        self._closed = True
        if self._loop is not None:
            self._loop.close()
        for pool in list(self._pools.values()):
            pool.disconnect()


def _open(closed: bool) -> None:
    """Who closes hangs up on what is connected; one that was just connecting is told here, before it blocks for long."""
    if closed:
        raise ConnectionError("the bell was closed")


class _Loop:
    """An event loop for threads that wait, one at a time: one thread can't wait for several connections at once.

    Who leaves it last ends it: the thread that waits where there is one, else the one that closes. A loop that nobody ends would
    keep the waits of the other partitions, and their connections, until the garbage collector finds them.
    """

    def __init__(self, address: Address) -> None:
        self._loop, self._bell = asyncio.new_event_loop(), AsyncBell(address)
        self._lock = threading.Lock()
        self._waiting: asyncio.Task[Token | None] | None = None
        self._closed = threading.Event()

    def wait(self, keys: Sequence[str], seconds: float) -> Token | None:
        with self._lock:
            if self._closed.is_set():
                raise Unreachable("the bell was closed")
            waiting = self._waiting = self._loop.create_task(self._bell.wait(keys, seconds))
        try:
            return self._loop.run_until_complete(waiting)
        except asyncio.CancelledError:
            raise Unreachable("the bell was closed") from None
        finally:
            with self._lock:
                self._waiting, closed = None, self._closed.is_set()
            if closed:
                self._end()

    def close(self) -> None:
        with self._lock:
            closed, waiting = self._closed.is_set(), self._waiting
            self._closed.set()
            if waiting is not None:
                self._loop.call_soon_threadsafe(waiting.cancel)
        if waiting is None and not closed:
            self._end()

    def _end(self) -> None:
        self._loop.run_until_complete(self._bell.close())
        self._loop.close()


def _token(reply: Any) -> Token | None:
    if isinstance(reply, Exception):
        raise reply
    return None if reply is None else (reply[0].decode(), reply[1])


def _as_trouble(error: Exception) -> Trouble:
    if isinstance(error, Trouble):
        return error
    raise error
