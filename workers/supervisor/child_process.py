"""A worker process as its supervisor sees it: how it is started, what it tells, how it is asked to end.

A child writes the id it is about to join under to its supervisor first. The death of a child is its process's: a pipe of it may be
kept open by processes that it made, and their end is nobody's business here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from coordinator.clock import Clock
from coordinator.logs import JsonLines, Lines
from workers.process.options import WorkerOptions
from workers.supervisor.merged_log import outlet

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Child:
    """A worker process, and the ids that it may have joined under."""

    process: asyncio.subprocess.Process
    lifeline: int  # it drains when this end of a pipe is closed
    tells: int  # the end of a pipe on which it tells
    started: float
    ids: set[tuple[int, str]] = field(default_factory=set)
    grace: float = 0.0  # the longest of its handlers
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)  # its first claim was answered
    farewell: str = ""  # left: it holds nothing; unfinished: it drained, and may hold something; killed: by us
    blame: str = ""  # the only run that gets a strike for its end; empty: each that it held
    reason: str = ""  # why it could not begin, in its own words
    refuses: set[str] = field(default_factory=set)  # kinds of which no run could be started in it
    refused: asyncio.Event = field(default_factory=asyncio.Event)  # there are such kinds
    extra: bool = False  # for one run, and at no place
    taken: int = 0  # runs that it held when it was gone
    moved_at: float | None = None  # when its heartbeat moved, as its event loop told last
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # to drain
    hurried: asyncio.Event = field(default_factory=asyncio.Event)  # to drain without grace
    life: asyncio.Task[None] | None = None  # over when it has ended, and nothing of it is left in the store
    _heard: bytes = b""

    @property
    def ready(self) -> bool:
        return self.is_ready.is_set()

    def hear(self) -> bool:
        """Takes what it has told. Whether it may tell more."""
        more = True
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.tells, 4096):
                self._heard += part
            more = False
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._told(line.decode(errors="replace"))
        return more

    def _told(self, line: str) -> None:
        word, _, sentence = line.partition(" ")
        match word, sentence.split():
            case "joins", [partition, worker]:
                self.ids.add((int(partition), worker))
            case "grace", [seconds]:
                self.grace = float(seconds)
            case "ready", []:
                self.is_ready.set()
            case "moves", [at]:
                self.moved_at = float(at)
            case "refuses", [kind]:
                self.refuses.add(kind)
                self.refused.set()
            case "fails", [*_]:
                self.reason = sentence
            case (("left" | "unfinished"), []):
                self.farewell, self.blame = word, "nobody"
            case "replace", [run]:
                logger.error("worker process %d is killed: %s has blocked its event loop", self.process.pid, run)
                self.farewell, self.blame = "killed", run
                self.signal(signal.SIGKILL)
            case _:
                logger.warning("worker process %d told what nobody understands: %r", self.process.pid, word)

    # -- what it is asked for

    def drain(self) -> None:
        """Asks it to end. Asked again it does nothing: a second signal would take its runs' grace."""
        if not self.asked.is_set():
            self.asked.set()
            self.signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Asks it to end without grace, also where it was asked before. Not by a second signal: one that comes before the first was
        handled is lost, and a handler with a long grace would keep the process until it is killed."""
        self.drain()
        if not self.hurried.is_set():
            self.hurried.set()
            self._say("hurry")

    def say_outdated(self, outdated: bool) -> None:
        """Whether there is newer code than its own: then it leaves what was just released to others for a moment."""
        self._say("outdated" if outdated else "current")

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended, or hears nothing: then it claims nothing either
            os.write(self.lifeline, f"{word}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def overdue(self, grace: float, patience: float, clock: Clock) -> None:
        """Returns when it was asked to end and should have ended."""
        await self.asked.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(grace, self.grace)):
                await self.hurried.wait()
        await clock.asleep(patience)

    # -- how it ended

    async def seen_out(self) -> None:
        """Returns when nothing of it is left. Raises what went wrong meanwhile, which is a mistake of ours."""
        assert self.life is not None
        await asyncio.wait({self.life})
        self.life.result()

    @property
    def alive(self) -> bool:
        return self.life is None or not self.life.done()

    @property
    def end(self) -> str:
        """How its process ended, for people."""
        code = self.process.returncode or 0
        if code >= 0:
            return "in order" if self.farewell == "left" else f"with exit code {code}"
        names = {int(number): number.name for number in signal.Signals}
        return f"by signal {names.get(-code, -code)}"

    @property
    def code(self) -> int:
        """What it adds to the exit code of the fleet: nothing where it ended in order, or was stopped before it had begun."""
        code = self.process.returncode or 0
        if (self.farewell == "left" and code == 0) or (code == -signal.SIGTERM and not self.ids):
            return 0
        return max(code, 1)

    def close(self) -> None:
        os.close(self.lifeline)
        os.close(self.tells)


async def spawn(places: Sequence[str], options: WorkerOptions, now: float) -> Child:
    """A new process with the code that is on disk now."""
    tells, its_tells = os.pipe()
    its_lifeline, lifeline = os.pipe()
    its_output = outlet()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.program.child", stdin=its_lifeline, stdout=its_output, stderr=its_output,
            pass_fds=(its_tells,), start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(tells)
        os.close(lifeline)
        raise
    finally:
        os.close(its_tells)
        os.close(its_lifeline)
        if its_output is not None:
            os.close(its_output)
    os.set_blocking(tells, False)
    # by the pipe and not as arguments: a URL may hold a password, and everybody sees arguments
    order = {"places": list(places), "tells": its_tells, "options": asdict(options), "logs": logging_choice()}
    with contextlib.suppress(BrokenPipeError):  # it has ended already: that is seen soon enough
        os.write(lifeline, json.dumps(order).encode() + b"\n")
    os.set_blocking(lifeline, False)
    return Child(process, lifeline, tells, now)


def logging_choice() -> dict[str, object]:
    """How the children log: as the supervisor does."""
    root = logging.getLogger()
    formatters = [handler.formatter for handler in root.handlers]
    return {
        "level": root.level,
        "as_json": any(isinstance(one, JsonLines) for one in formatters),
        "colour": any(isinstance(one, Lines) and one.colour for one in formatters),
    }
