"""The simulated network between processes and server: it delays, loses, cuts and delivers late, as the seed decides.

A `Line` replaces redis-py's connection pool, below the real transport. So the real code packs, merges, times out and
repeats requests. A request that was sent is independent of its sender, which may stop waiting or die.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import hiredis
import redis.exceptions as foreign

from coordinator.errors import Unreachable
from coordinator.store.transport.async_bell import read_entries
from coordinator.store.transport.connections.exchange import encode_commands
from coordinator.store.transport.packets import pack
from tests.faults.simulation.loop import Process, VirtualLoop, current
from tests.faults.simulation.scenario import HARD
from tests.faults.simulation.server import Words

LOOK = 0.3  # seconds between two looks of a client that waits for entries of a stream


@dataclass(slots=True)
class NetworkFaults:
    """The kinds of faults of a seed, and their frequency. A seed has only some kinds, because a single kind reaches deeper."""

    dice: random.Random
    chances: dict[str, float] = field(default_factory=dict)
    focus: frozenset[str] = frozenset()  # the scripts that are hit more often
    latest: float = 1.0  # the largest delay of a late request
    calm: bool = False
    outage_until: float = 0.0
    last_arrival: float = 0.0
    cut_off: dict[str, float] = field(default_factory=dict)  # process -> end of its outage
    counts: Counter[str] = field(default_factory=Counter)

    def fate(self, weight: float = 1.0) -> str:
        if not self.calm:
            roll = self.dice.random() / weight
            for fault, chance in self.chances.items():
                roll -= chance
                if roll < 0:
                    self.counts[fault] += 1
                    return fault
        return "good"

    def lateness(self, now: float) -> float:
        """Return the additional delay of a request. The latest arrival is remembered, because a seed must last until then."""
        late = (
            self.dice.uniform(0.0, self.latest) ** 2 / self.latest
        )  # Mostly a short delay, so that the request still meets related work.
        self.last_arrival = max(self.last_arrival, now + late + 1.0)
        return late

    def reachable(self, process: Process | None, now: float) -> bool:
        return self.calm or (
            now >= self.outage_until and (process is None or now >= self.cut_off.get(process.name, 0.0))
        )

    def delay(self) -> float:
        """Return a delay: mostly some hundred microseconds, sometimes much more."""
        if self.calm or self.dice.random() < 0.9:
            return 0.0001 + 0.0009 * self.dice.random()
        return 0.3 * self.dice.random()


class Receiver(Protocol):
    """The interface of the place at which requests arrive."""

    loop: VirtualLoop
    network_faults: NetworkFaults

    def name_of(self, command: Words) -> str: ...

    def execute(self, sender: Process | None, commands: Sequence[Words]) -> list[Any]: ...

    def block(self, listener: Listener) -> None: ...

    def unblock(self, listener: Listener) -> None: ...


def _error(reply: Exception) -> Exception:
    kind = foreign.NoScriptError if str(reply).startswith("NOSCRIPT") else foreign.ResponseError
    return kind(str(reply))


class Line:
    """The replacement of the transport's connection pool."""

    def __init__(self, server_side: Receiver) -> None:
        self._server_side = server_side

    async def get_connection(self) -> Connection:
        server_side = self._server_side
        if not server_side.network_faults.reachable(current.get(), server_side.loop.time()):
            await asyncio.sleep(server_side.network_faults.delay())
            if server_side.network_faults.dice.random() < 0.5:
                await server_side.loop.create_future()  # The connection falls silent.
            raise foreign.ConnectionError("refused")
        return Connection(server_side)

    async def release(self, connection: Connection) -> None:
        return

    async def disconnect(self) -> None:
        return


class Connection:
    """One exchange at a time, as the transport makes them."""

    def __init__(self, server_side: Receiver) -> None:
        self._server_side = server_side
        self._arrived: asyncio.Future[list[Any]] = server_side.loop.create_future()
        self._replies: list[Any] = []

    async def send_packed_command(self, parts: Sequence[bytes]) -> None:
        self._arrived, self._replies = self._server_side.loop.create_future(), []
        self.carry_out(current.get(), _commands(parts))

    def carry_out(self, sender: Process | None, commands: Sequence[Words]) -> None:
        """Deliver a request, which no longer depends on its sender."""
        server_side, network_faults = self._server_side, self._server_side.network_faults
        hard = network_faults.focus and any(
            server_side.name_of(command) in network_faults.focus for command in commands
        )
        weight = HARD if hard else 1.0
        fate = (
            network_faults.fate(weight) if network_faults.reachable(sender, server_side.loop.time()) else "request lost"
        )
        if fate == "request lost":
            self._break(network_faults.delay())
            return
        late = network_faults.lateness(server_side.loop.time()) if fate == "late" else 0.0
        self._after(network_faults.delay() + late, lambda: self._deliver(sender, commands, fate))

    def _deliver(self, sender: Process | None, commands: Sequence[Words], fate: str) -> None:
        network_faults = self._server_side.network_faults
        if fate == "cut":
            commands = commands[: network_faults.dice.randrange(len(commands) + 1)]
        replies = self._server_side.execute(sender, commands)
        if fate in ("reply lost", "cut"):
            self._break(network_faults.delay())
        else:
            self._after(network_faults.delay(), lambda: self._arrive(replies))
        if fate == "repeated":  # As if a first request was thought lost and arrived after the second.
            late = network_faults.lateness(self._server_side.loop.time())
            self._after(network_faults.delay() + late, lambda: self._again(sender, commands))

    def _again(self, sender: Process | None, commands: Sequence[Words]) -> None:
        self._server_side.execute(sender, commands)

    def _break(self, delay: float) -> None:
        """Reset the connection, or let it fall silent for ever."""
        if self._server_side.network_faults.dice.random() < 0.7:
            self._after(delay, lambda: self._arrive(foreign.ConnectionError("reset")))

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self._server_side.loop.call_later(seconds, what, context=self._server_side.loop.outside)

    def _arrive(self, replies: list[Any] | Exception) -> None:
        if self._arrived.done():
            return
        if isinstance(replies, Exception):
            self._arrived.set_exception(replies)
            self._arrived.exception()  # Its sender may be dead.
        else:
            self._arrived.set_result(replies)

    async def read_response(self) -> Any:
        if not self._replies:
            self._replies = list(await self._arrived)
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise _error(reply)
        return reply

    async def disconnect(self, nowait: bool = False) -> None:
        self._arrived = self._server_side.loop.create_future()


def _commands(parts: Sequence[bytes]) -> list[Words]:
    reader = hiredis.Reader()
    for part in parts:
        reader.feed(part)
    commands: list[Words] = []
    while (command := reader.gets()) is not False:
        commands.append(command)
    return commands


@dataclass(eq=False, slots=True)
class Listener:
    """A client that waits for a token on some lists."""

    keys: list[bytes]
    process: Process | None
    heard: asyncio.Future[tuple[str, bytes]]
    take: Callable[[bytes, bytes], None]

    @property
    def pop(self) -> Words:
        return [b"LMPOP", b"%d" % len(self.keys), *self.keys, b"LEFT"]


class Bell:
    """The replacement of AsyncBell: wait at the server for the first token on some lists."""

    def __init__(self, server_side: Receiver) -> None:
        self._server_side = server_side

    async def wait(self, keys: Sequence[str], seconds: float) -> tuple[str, bytes] | None:
        server_side, network_faults = self._server_side, self._server_side.network_faults
        await asyncio.sleep(network_faults.delay())
        if not network_faults.reachable(current.get(), server_side.loop.time()):
            raise Unreachable("no way to the server")
        heard: asyncio.Future[tuple[str, bytes]] = server_side.loop.create_future()

        def take(key: bytes, token: bytes) -> None:
            if network_faults.fate() == "good":  # Otherwise the token is lost on its way.
                server_side.loop.call_later(
                    network_faults.delay(), _hear, heard, (key.decode(), token), context=server_side.loop.outside
                )

        listener = Listener([key.encode() for key in keys], current.get(), heard, take)
        server_side.block(listener)
        try:
            async with asyncio.timeout(seconds):
                return await heard
        except TimeoutError:
            return None
        finally:
            server_side.unblock(listener)

    async def ask(self, keys: Sequence[str], seconds: float, plan: Any) -> Any:
        """Send a call that waits behind a bell.

        From its arrival on it waits at the server, which executes it when the bell rings or the time is over. The
        server does not know whether the sender was lost with its machine, and may execute the call for a lost sender
        too.
        """
        server_side, sender = self._server_side, current.get()
        await asyncio.sleep(server_side.network_faults.delay())
        if not server_side.network_faults.reachable(sender, server_side.loop.time()):
            raise Unreachable("no way to the server")
        connection = Connection(server_side)
        commands = _commands(
            [encode_commands([packet.command(bare=False, whole=False) for packet in pack([next(plan)])])]
        )

        rung = False

        def carry_out(*token: Any) -> None:
            nonlocal rung
            if listener.heard.done() or (
                sender is not None and not sender.alive and server_side.network_faults.dice.random() < 0.5
            ):
                return
            rung = bool(token)
            listener.heard.cancel()
            server_side.unblock(listener)
            connection.carry_out(sender, commands)

        listener = Listener([key.encode() for key in keys], sender, server_side.loop.create_future(), carry_out)
        server_side.block(listener)
        timer = server_side.loop.call_later(seconds, carry_out, context=server_side.loop.outside)
        try:
            async with asyncio.timeout(seconds + 5.0):
                reply = await connection.read_response()
        except (foreign.RedisError, TimeoutError) as error:
            raise Unreachable(str(error)) from None
        finally:
            if sender is None or sender.alive:  # The connection was closed.
                timer.cancel()
                server_side.unblock(listener)
        try:
            plan.send(reply)
        except StopIteration as done:
            return rung, done.value
        raise AssertionError("a plan of more than one call")

    async def read(self, keys: Sequence[str], after: Sequence[str], most: int, seconds: float) -> dict[str, Any]:
        """Wait until one of several streams has entries. Look now and then, as if entries came late."""
        server_side, sender = self._server_side, current.get()
        command = [word.encode() for word in ("XREAD", "COUNT", str(most), "STREAMS", *keys, *after)]
        until = server_side.loop.time() + seconds
        while True:
            await asyncio.sleep(server_side.network_faults.delay())
            if not server_side.network_faults.reachable(sender, server_side.loop.time()):
                raise Unreachable("no way to the server")
            (found,) = server_side.execute(sender, [command])
            if server_side.network_faults.fate() != "good":
                raise Unreachable("the reply was lost")
            if found or server_side.loop.time() >= until:
                return read_entries(found)
            await asyncio.sleep(LOOK)

    async def close(self) -> None:
        return


def _hear(heard: asyncio.Future[tuple[str, bytes]], token: tuple[str, bytes]) -> None:
    if not heard.done():
        heard.set_result(token)
