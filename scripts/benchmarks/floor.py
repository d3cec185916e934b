"""The floor of the server's time: the commands of claims and completions, with the same arguments, in scripts that do nothing else.

MONITOR records the commands while our own scripts claim and complete runs in batches. A replay then executes them on the same data:
one script for each batch, in which every command, key, field and value is a constant. The time that our scripts take beyond this
is their own work: reading arguments, checks, formatting, building keys, and the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from bare import PIPELINE, Bare
from server import BenchServer

_LINE = re.compile(rb"^[\d.]+ \[\d+ (\S+)\] (.*)$", re.S)
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.S)
_END = b"floor: end"


@dataclass(frozen=True, slots=True)
class Floor:
    """The server's time for each run, in microseconds.

    Attributes:
        claim: The claim with our scripts.
        complete: The completion with our scripts.
        bare_claim: The commands of the claim alone.
        bare_complete: The commands of the completion alone.
        commands: The number of these commands.
    """

    claim: float
    complete: float
    bare_claim: float
    bare_complete: float
    commands: float

    @property
    def ratio(self) -> float:
        """How many times the floor a claim and a completion take together."""
        return (self.claim + self.complete) / (self.bare_claim + self.bare_complete)


class Monitor:
    """A connection that receives all commands that scripts execute (MONITOR)."""

    def __init__(self, server: BenchServer) -> None:
        self._admin = server.admin
        self._connection = redis.Connection(port=server.port, socket_timeout=60)
        self._connection.send_command("MONITOR")
        self._connection.read_response()

    def read(self) -> list[list[bytes]]:
        """Return the commands that scripts executed since the last call. Their arguments are as MONITOR escapes them."""
        self._admin.echo(_END)
        found = []
        while True:
            line = _LINE.match(self._connection.read_response(disable_decoding=True))
            assert line is not None, "MONITOR sent a line that can't be read"
            arguments = _ARGUMENT.findall(line[2])
            if line[1] == b"lua":
                found.append(arguments)
            elif arguments[1:] == [_END]:
                return found

    def close(self) -> None:
        self._connection.disconnect()


def replay_of(commands: Sequence[Sequence[bytes]]) -> str:
    """Return a Lua script that executes the commands. MONITOR writes a byte as `\\xHH`, and Lua as `\\ddd`."""

    def literal(value: bytes) -> str:
        return (
            '"' + re.sub(rb"\\x([0-9a-f]{2})", lambda byte: b"\\%03d" % int(byte[1], 16), value).decode("ascii") + '"'
        )

    return "\n".join(["local call = redis.call", *(f"call({', '.join(map(literal, one))})" for one in commands)])


def measured(server: BenchServer, count: int) -> Floor:
    """Claim and complete `count` runs with our scripts, and then with their commands alone. Return the times."""
    made = Bare(server, "floor").enqueues(count)
    batches = [made[start : start + PIPELINE] for start in range(0, count, PIPELINE)]

    def drain(after_step: Callable[[], None] = lambda: None) -> tuple[float, float]:
        """Return the processor time of the server for the claims and for the completions."""
        bare = _filled(server, batches)
        after_step()
        before, held = server.usage().cpu, []
        for batch in batches:
            held.append(bare.claim(len(batch), merged=True))
            after_step()
        claimed = server.usage().cpu
        for runs in held:
            bare.complete(runs, merged=True)
            after_step()
        return claimed - before, server.usage().cpu - claimed

    def replay(scripts: Sequence[str]) -> float:
        shas = [server.admin.script_load(script) for script in scripts]
        before = server.usage().cpu
        for sha in shas:
            server.admin.evalsha(sha, 0)
        return server.usage().cpu - before

    monitor, steps = Monitor(server), list[list[list[bytes]]]()
    drain(lambda: steps.append(monitor.read()))
    monitor.close()
    _filling, *steps = steps
    claims, completions = steps[: len(batches)], steps[len(batches) :]
    claim, complete = drain()
    bare = _filled(server, batches)
    bare_claim = replay([replay_of(step) for step in claims])
    bare_complete = replay([replay_of(step) for step in completions])
    ended = int(server.admin.zcard(bare.keys.ended("completed")))
    if ended != count:
        raise RuntimeError(f"the replay ended {ended} of {count} runs")
    times = (time / count * 1e6 for time in (claim, complete, bare_claim, bare_complete))
    return Floor(*times, sum(map(len, steps)) / count)


def _filled(server: BenchServer, batches: Sequence[list[tuple[Any, ...]]]) -> Bare:
    """Return an empty namespace with these runs in the queue, and a worker."""
    server.empty()
    bare = Bare(server, "floor")
    bare.join("w")
    for batch in batches:
        bare.enqueue(batch, merged=True)
    return bare
