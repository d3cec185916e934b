"""Wait for bells in an event loop, on connections of their own: a blocked connection cannot serve other requests.

A client can send a call together with the blocking command. The server carries out the call as soon as the list has a token, one
round trip sooner than if the client first received the token and then made the call.

On one server, a client can wait for lists of several partitions with one command. In a Cluster each partition needs a blocking
command of its own. The first that returns a token ends the call of `wait`. The others continue, and the next call of `wait` uses
them, so that no token is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from coordinator.errors import BadCall, Unreachable
from coordinator.model.address import HERE, Address, Node
from coordinator.store.script import Argument, Call
from coordinator.store.transport.connections.async_pool import (
    close_pools,
    drop_connection,
    make_async_pool,
)
from coordinator.store.transport.connections.exchange import exchange_async
from coordinator.store.transport.connections.open_files import transport_of
from coordinator.store.transport.connections.settings import CONNECT_SECONDS
from coordinator.store.transport.connections.silence import SilenceLimit
from coordinator.store.transport.drivers import Plan
from coordinator.store.transport.error_mapping import ScriptMissing, SlotMoved, TransientError, final_error, map_error
from coordinator.store.transport.packets import pack
from coordinator.store.transport.topology import make_topology
from coordinator.store.transport.topology.discovery import discover_async
from coordinator.store.transport.topology.hash_slots import tag_of
from coordinator.store.transport.topology.sentinel import MasterCheckTimer

T = TypeVar("T")
Token = tuple[str, bytes]
Entries = dict[str, list[tuple[bytes, list[bytes]]]]
MOST_BELL_REDIRECTS = 3


class AsyncBell:
    """A bell for an event loop: it waits until one of several lists has a token."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._topology = make_topology(address)
        self._master_check = MasterCheckTimer(self._topology)
        self._rechecking: asyncio.Task[None] | None = None
        self._pools: dict[Node, Any] = {}
        self._pending: dict[str, asyncio.Task[Token | None]] = {}
        self._closed = False

    async def wait(self, keys: Sequence[str], seconds: float) -> Token | None:
        """Wait until one of the lists has a token, and take it.

        Returns:
            The list's key and the token, or None when the time is over.

        Raises:
            Unreachable: No node of these lists can be reached.
        """
        by_tag: dict[str, list[str]] = {}
        for key in keys:
            by_tag.setdefault(tag_of(key) if self.address.kind == "cluster" else "", []).append(key)
        if len(by_tag) == 1:
            token: Token | None = await self._wait_on_one_node(keys, seconds)
            return token
        return await self._wait_on_many_nodes(by_tag, seconds)

    async def ask(self, keys: Sequence[str], seconds: float, plan: Plan[T]) -> tuple[bool, T]:
        """Run a plan whose only call the server carries out when one of the lists has a token, or when the time is over.

        If this method ends without an answer, the call may still be carried out later.

        Args:
            keys: Lists of the call's partition.
            seconds: How long the server waits for a token.
            plan: The plan. It must make exactly one call.

        Returns:
            True if a list had a token, and the result of the plan.

        Raises:
            Unreachable: The node can't be reached, or this client has closed the bell.
            BadCall: The plan does not make exactly one call.
        """
        call = next(plan)
        assert isinstance(call, Call)
        rung, reply = await self._wait_on_one_node(keys, seconds, call)
        try:
            plan.send(reply)
        except StopIteration as done:
            return rung, done.value
        raise BadCall("a plan that waits behind a bell must make exactly one call")

    async def read(self, keys: Sequence[str], after: Sequence[str], most: int, seconds: float) -> Entries:
        """Wait until one of several streams of one partition has entries after a given id, and return the entries by key.

        Args:
            keys: The keys of the streams.
            after: For each stream, the id of the last entry that is known.
            most: The largest number of entries of one stream.
            seconds: How long to wait. When the time is over, the result is empty.

        Raises:
            Unreachable: The node can't be reached, or this client has closed the bell.
        """
        command = read_command(keys, after, most, seconds)
        return read_entries(await self._wait_on_one_node(keys, seconds, command=command))

    async def close(self) -> None:
        """End all waits and close their connections."""
        self._closed = True
        tasks: list[asyncio.Task[Any]] = [
            *self._pending.values(),
            *([] if self._rechecking is None else [self._rechecking]),
        ]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await close_pools(self._pools.values())

    async def _wait_on_many_nodes(self, by_tag: dict[str, list[str]], seconds: float) -> Token | None:
        """Return the first token of any partition.

        A partition that cannot be reached does not end the wait, unless no partition can be reached.
        """
        loop = asyncio.get_running_loop()
        for tag, keys in by_tag.items():
            if tag not in self._pending:
                self._pending[tag] = loop.create_task(self._wait_on_one_node(keys, seconds))
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

    async def _wait_on_one_node(
        self,
        keys: Sequence[str],
        seconds: float,
        call: Call | None = None,
        command: list[Argument] | None = None,
    ) -> Any:
        """Wait until one of several lists on the same node has a token.

        Args:
            keys: The keys of the lists.
            seconds: How long to wait.
            call: A call that the server carries out as soon as the wait has ended; None for no call.
            command: The blocking command; by default BLPOP.

        Returns:
            The list's key and the token, or None when the time is over. With a call: True if a list had a token, and the server's
            answer to the call. With a command: the server's answer to the command.

        Raises:
            Unreachable: The node can't be reached, or this client has closed the bell.
        """
        failure = TransientError(f"no node of {self.address} serves this partition", sent=False)
        for _ in range(MOST_BELL_REDIRECTS):
            node = HERE
            try:
                found = await self._find(keys[0])
                if found is None:
                    break
                node = found
                return await self._block(node, keys, seconds, call, command)
            except Exception as error:  # after any error there is no token
                if self._closed:  # redis-py raises odd errors when a connection is closed while it is in use
                    raise Unreachable("the wait ended: this client has closed its bell") from error
                failure = as_transient(map_error(error, self.address, sent=call is not None, node=node))
            if isinstance(failure, SlotMoved):
                self._topology.moved(failure.slot, failure.node)
                continue
            if failure.rediscover:
                self._topology.doubt(node)
            break
        raise final_error(failure) from None

    async def _find(self, key: str) -> Node | None:
        """Return the node that serves the partition of a list; None if no such node is known.

        If the known master is due for a check, the check runs in the background, and this call returns the known master.
        """
        loop = asyncio.get_running_loop()
        known = self._topology.where(key)
        if self._master_check.start_if_due(loop.time()) and known is not None:
            self._rechecking = self._rechecking or loop.create_task(self._recheck())
            return known
        if self._topology.stale and (self._rechecking is None or known is None):
            await discover_async(self.address, self._topology)
        return self._topology.where(key)

    async def _recheck(self) -> None:
        try:
            await discover_async(self.address, self._topology)
        except Exception:  # noqa: BLE001  # the next wait searches again, and raises the error if that fails, too
            pass
        finally:
            self._rechecking = None

    async def _block(
        self, node: Node, keys: Sequence[str], seconds: float, call: Call | None, command: list[Argument] | None
    ) -> Any:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = make_async_pool(self.address, node)
        packets = [] if call is None else pack([call])
        commands: list[list[Argument]] = [
            ["BLPOP", *keys, str(seconds)] if command is None else command,
            *(packet.command(bare=False, whole=False) for packet in packets),
        ]
        # A connection that died without a sign is dropped a few seconds after the server should have answered.
        async with asyncio.timeout(seconds + CONNECT_SECONDS):
            connection = await pool.get_connection()
        transport = transport_of(connection)
        try:
            async with SilenceLimit(connection, seconds + CONNECT_SECONDS):
                check_open(self._closed)
                token, *answers = await exchange_async(connection, commands, packets, ahead=1)
                if any(isinstance(answer, ScriptMissing) for answer in answers):
                    # The second try does not wait for the bell: the first one may have taken the token.
                    check_open(self._closed)
                    whole = [packet.command(bare=False, whole=True) for packet in packets]
                    answers = await exchange_async(connection, whole, packets)
        except BaseException:
            await drop_connection(connection, transport)
            raise
        finally:
            await pool.release(connection)
        if not answers:
            return read_token(token) if command is None else token
        for reply in (token, *answers):
            if isinstance(reply, Exception):
                raise reply
        return token is not None, answers[0]


def check_open(closed: bool) -> None:
    """Check that the bell was not closed while a wait was opening its connection.

    Closing a bell ends its open connections, but not a connection that is still being opened.

    Raises:
        ConnectionError: The bell was closed.
    """
    if closed:
        raise ConnectionError("this client has closed its bell")


def read_command(keys: Sequence[str], after: Sequence[str], most: int, seconds: float) -> list[Argument]:
    """Return the XREAD command that waits for entries of streams, for at least 1 ms: BLOCK 0 would wait forever.

    Args:
        keys: The keys of the streams.
        after: For each stream, the id of the last entry that is known.
        most: The largest number of entries of one stream.
        seconds: How long the command waits.
    """
    return ["XREAD", "COUNT", most, "BLOCK", max(1, round(seconds * 1000)), "STREAMS", *keys, *after]


def read_entries(reply: Any) -> Entries:
    """Return the entries of a reply to XREAD by the key of their stream.

    Raises:
        Exception: The reply itself, if it is an error.
    """
    if isinstance(reply, Exception):
        raise reply
    pairs = reply.items() if isinstance(reply, dict) else reply or []
    return {key.decode(): [(id, fields) for id, fields in entries] for key, entries in pairs}


def read_token(reply: Any) -> Token | None:
    """Return the key and the token from a reply to BLPOP; None if the time was over.

    Raises:
        Exception: The reply itself, if it is an error.
    """
    if isinstance(reply, Exception):
        raise reply
    return None if reply is None else (reply[0].decode(), reply[1])


def as_transient(error: Exception) -> TransientError:
    """Return the error if it is transient.

    Raises:
        Exception: The error itself, if it is not transient.
    """
    if isinstance(error, TransientError):
        return error
    raise error
