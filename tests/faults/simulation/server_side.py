"""The server's side of a simulation: execute requests, serve listeners, and show each step to the watcher."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hiredis

from coordinator.store.script import Script
from tests.faults.simulation.laws.step import Given
from tests.faults.simulation.loop import START, Process, VirtualLoop
from tests.faults.simulation.network import Listener, NetworkFaults
from tests.faults.simulation.server import RealServer, Words
from tests.faults.simulation.watcher import Watchers

TAIL = 60
QUIET = (
    "heartbeat",
    "judge",
    "checkpoint",
    "lock",
    "trim",
    "note",
    "upcoming",
    "view",
    "cap",
    "emit",
    "spend",
    "collect",
    "listen",
    "interrupt",
)  # scripts that ring no bell
CREATE = ("enqueue", "fire")
THE_SERVERS = (b"INFO", b"CONFIG")  # The answer says nothing about the seed.
CHANGE = (
    "checkpoint",
    "discard",
    "note",
    "extend",
    "kill",
    "spend",
)  # They do not change a status, but they change visible fields of a run.


@dataclass(frozen=True, slots=True)
class Step:
    """One command that arrived: how it is sent to the real server, and its arguments.

    A step without a name calls an unknown script. If nothing is to be sent, the answer is already known.
    """

    name: str
    words: Sequence[Words]
    known: Any = None
    at: str = ""  # the partition's hash tag
    given: Given | None = None
    rings: bool = False


class Trace:
    """The events in order: a digest of all, and the last lines."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.events = 0
        self.closed = False

    def say(self, now: float, who: str, what: str, detail: object) -> None:
        if self.closed:
            return
        self.events += 1
        line = f"{now:12.6f} {who:<6} {what:<12} {detail!r:.200}"
        self._digest.update(line.encode())
        self.tail.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


class ServerSide:
    """The place at which all requests of a seed arrive."""

    def __init__(
        self, server: RealServer, loop: VirtualLoop, network_faults: NetworkFaults, watchers: Watchers, trace: Trace
    ) -> None:
        self.server, self.loop, self.network_faults, self.watchers, self.trace = (
            server,
            loop,
            network_faults,
            watchers,
            trace,
        )
        self._listeners: list[Listener] = []
        self._loaded: set[bytes] = set()

    def name_of(self, command: Words) -> str:
        """Return the name of the script that a command calls, or an empty string."""
        script = self.server.scripts.get(command[1]) if len(command) > 1 else None
        return script.name if script is not None else ""

    def know(self, sha: bytes) -> None:
        """Note that a script is loaded, so that its text is not requested."""
        self._loaded.add(sha)

    @property
    def now_ms(self) -> int:
        return int((START + self.loop.time()) * 1000)

    def execute(self, sender: Process | None, commands: Sequence[Words]) -> list[Any]:
        """Execute one trip in one exchange with the real server, then serve the listeners."""
        steps = [self._step([*command]) for command in commands]
        listeners = self._listening() if any(step.rings for step in steps) else []
        asked = [words for step in steps for words in step.words]
        replies = self.server.ask(asked + [one.pop for one in listeners]) if asked else []
        who, answers = sender.name if sender else "-", []
        for step in steps:
            mine, replies = replies[: len(step.words)], replies[len(step.words) :]
            answers.append(self._judged(who, step, mine))
        self._serve(listeners, replies)
        return answers

    def _step(self, command: list[bytes]) -> Step:
        if command[0] == b"EVAL":
            command[:2] = [b"EVALSHA", hashlib.sha1(command[1], usedforsecurity=False).hexdigest().encode()]
            self._loaded.add(command[1])
        if command[0] != b"EVALSHA":
            return self._plain(command)
        if command[1] not in self._loaded:
            return Step("", [], hiredis.ReplyError("NOSCRIPT No matching script"))
        script, at = self.server.scripts[command[1]], command[3].decode()
        given, watcher = _given(script, command[4:]), self.watchers.of(at)
        if script.name in CREATE:
            watcher.expect([item["id"] for item in given[1] if item["id"]])
        words = self.server.at_time(command, self.now_ms)
        if script.head.get("Moves") or script.name in CHANGE:
            words = [*words, [b"EVALSHA", self.server.look, b"1", command[3], *watcher.ids]]
        return Step(script.name, words, None, at, given, script.name not in QUIET)

    def _plain(self, command: list[bytes]) -> Step:
        name = command[0].decode()
        if command[0] in THE_SERVERS:
            return Step(name, [], self.server.known(command))
        if command[0] == b"TIME":
            return Step(name, [], [b"%d" % (self.now_ms // 1000), b"%d" % (self.now_ms % 1000 * 1000)])
        return Step(name, self.server.at_time(command, self.now_ms))

    def _judged(self, who: str, step: Step, replies: Sequence[Any]) -> Any:
        if not step.words:
            if step.name:
                self.trace.say(self.loop.time(), who, step.name, "")
            return step.known
        if step.given is None:
            self.trace.say(self.loop.time(), who, step.name, replies[-1])
            return replies[-1]
        self.trace.say(self.loop.time(), who, step.name, replies[0])
        rows = replies[1] if len(replies) > 1 else None
        self.watchers.of(step.at).step(self.now_ms, step.name, step.given, replies[0], rows)
        return replies[0]

    # -- listeners

    def block(self, listener: Listener) -> None:
        self._listeners.append(listener)
        self._serve([listener], self.server.ask([listener.pop]))

    def unblock(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _listening(self) -> list[Listener]:
        """Return the listeners in their order of arrival, without those of dead processes. Paused ones still count."""
        return [one for one in self._listeners if one.process is None or one.process.alive]

    def _serve(self, listeners: Sequence[Listener], popped: Sequence[Any]) -> None:
        for listener, found in zip(listeners, popped, strict=True):
            if found:
                self.unblock(listener)
                self.trace.say(self.loop.time(), listener.process.name if listener.process else "-", "bell", found)
                listener.take(found[0], found[1][0])


def _given(script: Script, values: Sequence[bytes]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the arguments of a call by name, and its items."""
    texts = [value.decode(errors="replace") for value in values]
    fixed, width = len(script.arguments), len(script.item_fields)
    items = [
        dict(zip(script.item_fields, texts[at : at + width], strict=True))
        for at in (range(fixed, len(texts), width) if width else ())
    ]
    return dict(zip(script.arguments, texts, strict=False)), items
