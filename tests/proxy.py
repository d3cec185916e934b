"""A proxy in front of a server that can lose single replies and delay single requests.

One thread handles each connection in lockstep: a request, its reply, the next request. So a fault affects exactly one command,
even inside a pipeline. When the client closes its connection, the proxy closes the connection to the server too. A held or delayed
request is the exception: it counts as already sent and is delivered, even if the client no longer waits for its reply.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.resp import Frames, words
from tests.servers import free_port

Matching = Callable[[bytes], bool]

GREETINGS = {b"HELLO", b"AUTH", b"CLIENT", b"SELECT", b"PING", b"READONLY"}


def work(request: bytes) -> bool:
    """Return whether a request is not one of those with which a client library opens a connection."""
    return words(request)[0].upper() not in GREETINGS


def naming(*parts: bytes) -> Matching:
    """Match requests that contain all given bytes, for example the name of a command, the SHA of a script or the id of a run."""
    return lambda request: all(part in request for part in parts)


@dataclass(eq=False)
class Fault:
    """A fault that affects the next matching request."""

    matching: Matching
    seconds: float = 0
    happened: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class Hold:
    """A hold on all matching requests, until `over` is set."""

    matching: Matching
    over: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """A proxy that listens on its own loopback port and forwards requests to the server at port `upstream`.

    Args:
        upstream: The port of the server.
        frames: Reads the requests and replies of the server's protocol.
    """

    def __init__(self, upstream: int, frames: type[Frames] = Frames) -> None:
        self.upstream, self._frames = upstream, frames
        self.held = 0
        self.late_replies: list[bytes] = []
        self._lock = threading.Lock()
        self._cuts: list[Fault] = []
        self._delays: list[Fault] = []
        self._late: list[Fault] = []
        self._kept_back: list[Fault] = []
        self._hold: Hold | None = None
        self._closing = threading.Event()
        self._clients: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = _listen(free_port())
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = self._spawn(self._accept_all, self._listener)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    # --- controls

    def cut_next_reply(self, matching: Matching = work) -> Fault:
        """Let the server execute the next matching request, then drop its reply and close the connection."""
        return self._set(self._cuts, Fault(matching))

    def delay_next_request(self, seconds: float, matching: Matching = work) -> Fault:
        """Deliver the next matching request after a delay, or when the `over` event of the fault is set.

        It is delivered even if the client no longer waits.
        """
        return self._set(self._delays, Fault(matching, seconds))

    def hold_next_reply(self, matching: Matching = work) -> Fault:
        """Let the server execute the next matching request, and hold its reply until the `over` event of the fault is set."""
        return self._set(self._late, Fault(matching))

    def call_off(self, fault: Fault) -> bool:
        """Cancel a fault. Return False if it had already started."""
        with self._lock:
            for faults in (self._cuts, self._delays, self._late):
                if fault in faults:
                    faults.remove(fault)
                    return True
        return False

    def hold_requests(self, matching: Matching = work) -> None:
        """Hold matching requests until release_requests(). `held` counts them."""
        self._hold = Hold(matching)

    def release_requests(self) -> None:
        """Deliver the held requests. The replies to late requests are collected in `late_replies`."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.over.set()

    def refuse(self) -> None:
        """Refuse new connections. Existing connections continue."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._acceptor.join()
        self._listener.close()

    def accept(self) -> None:
        """Accept connections again, on the same port."""
        self._listener = _listen(self.port)
        self._acceptor = self._spawn(self._accept_all, self._listener)

    def drop(self) -> None:
        """Close every existing connection."""
        with self._lock:
            for client in self._clients:
                _hang_up(client)

    def say(self, words: bytes) -> None:
        """Send bytes on every open connection without a request, as some servers do before they close an idle connection."""
        with self._lock:
            for client in self._clients:
                client.sendall(words)

    def close(self) -> None:
        self._closing.set()
        self.release_requests()
        for kept in self._kept_back:
            kept.over.set()
        if self._listener.fileno() >= 0:
            self.refuse()
        self.drop()
        for thread in self._threads:
            thread.join()

    # --- carrying

    def _accept_all(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # refuse() ends the loop with an OSError
            while True:
                client, _ = listener.accept()
                with self._lock:
                    self._clients.add(client)
                self._spawn(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.upstream)) as server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._converse(self._frames(client), self._frames(server))
        finally:
            with self._lock:
                self._clients.discard(client)

    def _converse(self, requests: Frames, replies: Frames) -> None:
        late = False
        while (request := requests.next()) is not None:
            late = self._keep_back(request) or late
            cut, kept = self._spring(self._cuts, request), self._spring(self._late, request)
            replies.source.sendall(request)
            reply = replies.next() if late or cut else _reply_while_wanted(requests, replies)
            if reply is None:
                return
            if cut:
                cut.happened.set()
                return
            if kept:
                self._kept_back.append(kept)
                kept.happened.set()
                kept.over.wait()
            if late:
                self.late_replies.append(reply)
            with contextlib.suppress(OSError) if late else contextlib.nullcontext():
                requests.source.sendall(reply)

    def _keep_back(self, request: bytes) -> bool:
        """Delay the request if a fault or a hold matches it. Return whether it was delayed."""
        delay, hold = self._spring(self._delays, request), self._hold
        if delay:
            self._kept_back.append(delay)
            delay.happened.set()
            delay.over.wait(0 if self._closing.is_set() else delay.seconds)
        if hold and hold.matching(request):
            self._count(1)
            hold.over.wait()
            self._count(-1)
            return True
        return delay is not None

    def _set(self, faults: list[Fault], fault: Fault) -> Fault:
        with self._lock:
            faults.append(fault)
        return fault

    def _spring(self, faults: list[Fault], request: bytes) -> Fault | None:
        with self._lock:
            fault = next((fault for fault in faults if fault.matching(request)), None)
            if fault:
                faults.remove(fault)
            return fault

    def _count(self, more: int) -> None:
        with self._lock:
            self.held += more

    def _spawn(self, target: Callable[[socket.socket], None], argument: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=target, args=(argument,), name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread


class SlowLine:
    """A line to a server that carries a limited number of bytes per second in each direction, for all connections together.

    Args:
        upstream: The port of the server.
        bytes_per_second: What the line carries in each direction.
        latency: Seconds that each byte is on its way. Bytes that follow do not wait for it.
    """

    def __init__(self, upstream: int, bytes_per_second: float, latency: float = 0.0) -> None:
        self.upstream, self.bytes_per_second, self.latency = upstream, bytes_per_second, latency
        self.carried = {"requests": 0, "replies": 0}
        self._free_at = {"requests": 0.0, "replies": 0.0}
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = _listen(free_port())
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept_all)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for end in list(self._sockets):
            _hang_up(end)
        for thread in list(self._threads):
            thread.join()
        for end in (self._listener, *self._sockets):
            end.close()

    def _accept_all(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
                self._sockets += [client, server]
                for end in (client, server):  # a kernel that takes in everything at once would be a fast line
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, target, what in ((client, server, "requests"), (server, client, "replies")):
                    self._start(self._carry, source, target, what)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="slow line", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _carry(self, source: socket.socket, target: socket.socket, what: str) -> None:
        on_their_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        if self.latency:
            self._start(self._deliver, on_their_way, source, target)
        try:
            while data := source.recv(1 << 14):
                with self._lock:
                    now = time.monotonic()
                    self._free_at[what] = max(now, self._free_at[what]) + len(data) / self.bytes_per_second
                    rest = self._free_at[what] - now
                    self.carried[what] += len(data)
                time.sleep(rest)  # the slowness of the line
                if self.latency:
                    on_their_way.put((time.monotonic() + self.latency, data))
                else:
                    target.sendall(data)
        except OSError:
            pass
        finally:
            if self.latency:
                on_their_way.put((0.0, b""))
            else:
                _hang_up(source)
                _hang_up(target)

    def _deliver(
        self, on_their_way: queue.SimpleQueue[tuple[float, bytes]], source: socket.socket, target: socket.socket
    ) -> None:
        """Send each piece when its time has come, and close the connection after the last one."""
        try:
            while (piece := on_their_way.get())[1]:
                time.sleep(max(0.0, piece[0] - time.monotonic()))  # the latency of the line
                target.sendall(piece[1])
        except OSError:
            pass
        finally:
            _hang_up(source)
            _hang_up(target)


def _reply_while_wanted(requests: Frames, replies: Frames) -> bytes | None:
    """Return the reply, or None if the server closes the connection or the client disconnects while it waits, as in a BLPOP."""
    client, server = requests.source, replies.source
    while (reply := replies.ready()) is None and not replies.ended:
        readable, _, _ = select.select([client, server], [], [])
        if client in readable:
            requests.fill()  # the rest of a pipeline, or the end
            if requests.ended:
                return None
        if server in readable:
            replies.fill()
    return reply


def _listen(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=128)


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
