"""Connections of redis-py: how they are made, and what is said on one. Its own retries are off, and so are its time limits where an
event loop has its own.
"""

from __future__ import annotations

import asyncio
import os
import select
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import hiredis
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.retry

from coordinator.errors import CoordinatorError
from coordinator.model.address import Address, Node
from coordinator.store.script import Argument
from coordinator.store.transport import embedded, memory
from coordinator.store.transport.observer import watch
from coordinator.store.transport.topology import Question, Topology
from coordinator.store.transport.trip import Packet
from coordinator.store.transport.trouble import Loading, Refusal, mapped

CONNECT_SECONDS = 5.0
SEARCH_SECONDS = 1.0  # for one question while searching: who does not answer by then is asked again later


# ---- making them -------------------------------------------------------------------------------------------------------


def _settings(address: Address, connect_seconds: float) -> dict[str, Any]:
    settings: dict[str, Any] = {"decode_responses": False, "protocol": 2}
    if address.nodes:
        settings |= {"socket_connect_timeout": connect_seconds, "socket_keepalive": True}
    return settings


_attached: dict[str, embedded.Attachment] = {}
_attaching = threading.Lock()


def _url(address: Address, node: Node, *, sentinel: bool = False) -> str:
    """The URL to connect to."""
    return address.url_of(node, sentinel=sentinel) if node.host else address.url()


def _attachment(directory: str) -> embedded.Attachment:
    """An embedded server is attached to once per process, and left when the process ends."""
    with _attaching:
        if directory not in _attached:
            _attached[directory] = embedded.attach(Path(directory))
        return _attached[directory]


def _socket_again(directory: str) -> str:
    """The socket of an embedded server that was not to be reached: where it has died it is started again, by who comes first."""
    attachment = _attached.get(directory)
    if attachment is None:  # this process has left: it starts nothing any more
        raise ConnectionError(f"embedded://{directory} was left")
    try:
        attachment.ensure()
    except CoordinatorError as error:
        raise ConnectionError(str(error)) from error
    return str(attachment.socket)


class _EmbeddedConnection(redis.UnixDomainSocketConnection):
    """A connection that starts a dead server again where it connects anew."""

    def __init__(self, directory: str, **settings: Any) -> None:
        super().__init__(path=str(_attachment(directory).socket), **settings)  # type: ignore[no-untyped-call]  # as redis-py has it
        self._directory = directory

    def _connect(self) -> Any:
        try:
            return super()._connect()  # type: ignore[no-untyped-call]  # the same
        except (ConnectionRefusedError, FileNotFoundError):  # nobody listens there
            self.path = _socket_again(self._directory)
            return super()._connect()  # type: ignore[no-untyped-call]  # the same


class _AsyncEmbeddedConnection(redis.asyncio.UnixDomainSocketConnection):
    """The same in an event loop, which goes on meanwhile."""

    def __init__(self, directory: str, **settings: Any) -> None:
        super().__init__(path=str(_attachment(directory).socket), **settings)
        self._directory = directory

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[no-untyped-call]  # the same
        except (ConnectionRefusedError, FileNotFoundError):
            self.path = await asyncio.to_thread(_socket_again, self._directory)
            await super()._connect()  # type: ignore[no-untyped-call]  # the same


def detach() -> None:
    """Leaves the embedded servers of this process. For one that ends without its exit functions: else the last one out would
    leave a server running for ever."""
    while _attached:
        _, attachment = _attached.popitem()
        attachment.close()


class _TlsConnection(redis.SSLConnection):
    """Says why the server hung up. With TLS 1.3 it refuses the certificate of a client after the handshake: who writes next learns
    only that the line is dead, and the reason is still there to be read."""

    _last_words = ""

    def disconnect(self, *arguments: Any, **options: Any) -> None:
        self._last_words = _unread_alert(self._sock)
        super().disconnect(*arguments, **options)  # type: ignore[no-untyped-call]  # as redis-py has it

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        self._last_words = ""
        try:
            super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]  # as redis-py has it
        except redis.ConnectionError as error:
            if not self._last_words:
                raise
            raise redis.ConnectionError(self._last_words) from error


def _unread_alert(sock: Any) -> str:
    """What TLS has to say before a line is closed; nothing, mostly."""
    try:
        if sock is not None:
            sock.settimeout(0)
            sock.recv(1)
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLError as error:
        return str(error)
    except (OSError, ValueError):
        pass
    return ""


class _ThreadPool(redis.ConnectionPool):
    """Keeps at hand what is given back. To redis-py it stays in use: its own way of taking one and giving it back, with two locks
    and the books of its metrics, takes as long as to write and to read."""

    def reset(self) -> None:
        # of this process; threads take and give one by one. First: the last of super's is to say that the pool is this process's
        self._at_hand: list[Any] = []
        super().reset()

    def get_connection(self, *_: Any, **__: Any) -> Any:
        while self.pid == os.getpid():
            try:
                connection = self._at_hand.pop()
            except IndexError:
                break
            if _is_silent(connection._sock):
                return connection
            connection.disconnect()  # the server has hung up
            super().release(connection)
        return super().get_connection()

    def release(self, connection: Any) -> None:
        if connection.is_connected and connection.pid == self.pid:
            self._at_hand.append(connection)
        else:
            super().release(connection)


def _is_silent(sock: Any) -> bool:
    """Whether nobody has hung up, nor said anything that nobody asked for."""
    if sock is None:
        return False
    poll = select.poll()
    try:
        poll.register(sock, select.POLLIN)
    except ValueError:  # another thread has just closed it
        return False
    return not poll.poll(0)


def sync_pool(
    address: Address,
    node: Node,
    socket_timeout: float | None,
    *,
    sentinel: bool = False,
    connect: float = CONNECT_SECONDS,
) -> Any:
    if address.scheme == "memory":
        return memory.sync_client(address.name).connection_pool
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    settings = {"socket_timeout": socket_timeout, "retry": retry, **_settings(address, connect)}
    if address.scheme == "embedded":
        _attachment(address.name)
        return _ThreadPool(_EmbeddedConnection, directory=address.name, **settings)
    if address.tls:
        settings["connection_class"] = _TlsConnection
    return _ThreadPool.from_url(_url(address, node, sentinel=sentinel), **settings)


class _Pool(redis.asyncio.ConnectionPool):
    """Keeps at hand what is given back, as that of threads does, and hangs up at once. redis-py waits until what is written has
    been sent, or TLS has said good-bye: a server that hangs keeps it from that, and one who is cancelled meanwhile leaves the
    connection to the garbage collector."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._at_hand: list[Any] = []

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        while self._at_hand:
            connection = self._at_hand.pop()
            # what was said unasked would be taken for the answer to what comes next
            if connection.is_connected and connection._reader.exception() is None and not await connection.can_read():
                return connection
            await connection.disconnect(nowait=True)  # the server has hung up
            await super().release(connection)
        return await super().get_connection()  # type: ignore[no-untyped-call]  # as redis-py has it

    async def release(self, connection: Any) -> None:
        if connection.is_connected:
            self._at_hand.append(connection)
        else:
            await super().release(connection)

    async def disconnect(self, inuse_connections: bool = True) -> None:
        for connection in (*self._available_connections, *(self._in_use_connections if inuse_connections else ())):
            if connection._writer is not None:
                connection._writer.transport.abort()
                connection._close()  # forgets it, or the collector would complain
        await super().disconnect(inuse_connections)


async def hang_up(pools: Iterable[Any]) -> None:
    """Closes the connections of all pools, whatever comes: who is cancelled meanwhile is so when none is left."""
    cancelled: asyncio.CancelledError | None = None
    for pool in list(pools):
        try:
            await pool.disconnect()
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001  # one that is broken is as good as closed
            pass
    if cancelled is not None:
        raise cancelled


def async_pool(address: Address, node: Node, *, sentinel: bool = False, connect: float = CONNECT_SECONDS) -> Any:
    """No socket timeout: with one, Python 3.11 swallows cancellations. Trips have a deadline of their own."""
    if address.scheme == "memory":
        return memory.async_client(address.name).connection_pool
    retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
    settings = {"socket_timeout": None, "retry": retry, **_settings(address, connect)}
    if address.scheme == "embedded":
        _attachment(address.name)
        return _Pool(_AsyncEmbeddedConnection, directory=address.name, **settings)
    return _Pool.from_url(_url(address, node, sentinel=sentinel), **settings)


# ---- speaking ----------------------------------------------------------------------------------------------------------

_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub allows one argument


def packed(commands: Sequence[list[Argument]]) -> bytes:
    """Commands as bytes. By hiredis: redis-py's asyncio side packs in Python, which was half of a worker's time."""
    return b"".join([_pack(tuple(command)) for command in commands])


def exchange(connection: Any, commands: Sequence[list[Argument]], packets: Sequence[Packet] = ()) -> list[Any]:
    """There and back: for each command its reply, or what the server said in place of one. The first commands are those of the
    packets, for who watches; what comes after them says whether replicas have it."""
    replies: list[Any] = []
    with watch(packets) as watched:
        connection.send_packed_command([packed(commands)])
        watched.sent()
        for _ in commands:
            try:
                replies.append(connection.read_response())
            except Refusal as error:
                replies.append(error)
            except Loading as error:
                raise _cut_short(error, replies) from None
        watched.answered(replies)
    return replies


async def exchange_async(
    connection: Any, commands: Sequence[list[Argument]], packets: Sequence[Packet] = (), ahead: int = 0
) -> list[Any]:
    """The same in an event loop. `ahead`: so many commands go before those of the packets."""
    replies: list[Any] = []
    with watch(packets) as watched:
        await connection.send_packed_command([packed(commands)])
        watched.sent()
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except Refusal as error:
                replies.append(error)
            except Loading as error:
                raise _cut_short(error, replies) from None
        watched.answered(replies[ahead:])
    return replies


def _cut_short(error: Loading, replies: Sequence[Any]) -> Exception:
    """redis-py hangs up on a server that loads its data. One that does so from the first command on has carried nothing out; one
    that became a replica in the middle of the commands may have."""
    return ConnectionError(str(error)) if replies else error


# ---- searching ---------------------------------------------------------------------------------------------------------


def search(address: Address, topology: Topology) -> None:
    """Finds out where partitions are; Trouble where nobody tells."""
    steps = topology.search()
    try:
        question = next(steps)
        while True:
            question = steps.send(_answer(address, question))
    except StopIteration:
        return


def _answer(address: Address, question: Question) -> Any:
    pool = sync_pool(address, question.node, SEARCH_SECONDS, sentinel=question.sentinel, connect=SEARCH_SECONDS)
    try:
        reply = exchange(pool.get_connection(), [list(question.command)])[0]
        return _mapped(reply, address, question) if isinstance(reply, Exception) else reply
    except Exception as error:  # noqa: BLE001  # whatever it is, the next node is asked
        return _mapped(error, address, question)
    finally:
        pool.disconnect()


def _mapped(error: Exception, address: Address, question: Question) -> Exception:
    return mapped(error, address, sent=False, node=question.node, sentinel=question.sentinel)


async def search_async(address: Address, topology: Topology) -> None:
    steps = topology.search()
    try:
        question = next(steps)
        while True:
            question = steps.send(await _answer_async(address, question))
    except StopIteration:
        return


async def _answer_async(address: Address, question: Question) -> Any:
    pool = async_pool(address, question.node, sentinel=question.sentinel, connect=SEARCH_SECONDS)
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            reply = (await exchange_async(await pool.get_connection(), [list(question.command)]))[0]
        return _mapped(reply, address, question) if isinstance(reply, Exception) else reply
    except Exception as error:  # noqa: BLE001  # whatever it is, the next node is asked
        return _mapped(error, address, question)
    finally:
        await pool.disconnect()
