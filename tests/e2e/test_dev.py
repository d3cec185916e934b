"""`workers dev` as a person has it: a terminal, an editor, and Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator import Client, Status
from tests.e2e.processes import children
from tests.e2e.test_fleet import gone
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("more cases with real processes")

START = Callable[..., "Session"]

# steps end when the test says so: nothing is over before it was looked at, however slow the machine is
AGES = 100_000
CODE = """
import asyncio, os
from workers import AsyncRun, Registry

runs = Registry()
VERSION = "one"


@runs.handler(throttle=0)
async def steps(run: AsyncRun, total: int) -> list[str]:
    async for turn in run.loop(limit=total):
        print(f"step {turn} by {VERSION}")
        run.messages.append({"turn": turn, "by": VERSION})
        await asyncio.sleep(0.05)
        if os.path.exists("enough"):
            break
    return [f"{message['turn']} {message['by']}" for message in run.messages]
"""

TALKS = """
import asyncio, select, subprocess
from workers import AsyncRun, Registry

runs = Registry()


@runs.handler(grace=0.0)
async def talks(run: AsyncRun) -> None:
    print("somebody reads this")
    reader = select.poll()
    reader.register(1, 0)
    while not reader.poll(5):  # until its end is closed: of a process that dies, that may be after its children were given away
        pass
    print("and nobody this")
    subprocess.run(["echo", "nor this"], check=True)
    run.note("said")
    await run.flush()
    await asyncio.sleep(600)
"""


class Session:
    """One `workers dev` on a terminal of its own, and what it shows."""

    def __init__(self, folder: Path, *options: str, terminal: bool = True) -> None:
        self.folder, self._shown, self._looking_away = folder, b"", threading.Event()
        self._master, slave = os.openpty() if terminal else os.pipe()
        environment = {k: v for k, v in os.environ.items() if k not in ("RUNS_URL", "REDIS_URL", "NO_COLOR")}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / "workers"), "dev", "app:runs", *options],
            cwd=folder, env=environment | {"TERM": "xterm"}, stdin=slave if terminal else subprocess.DEVNULL,
            stdout=slave, stderr=slave, start_new_session=True,
            # only the process itself can take the terminal for its own; there are no locks in it
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None,  # noqa: PLW1509
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # so a terminal says that nobody is on its other side
            while not self._looking_away.is_set():
                if select.select([self._master], [], [], 0.05)[0]:
                    if not (part := os.read(self._master, 65536)):
                        return
                    self._shown += part

    def hang_up(self) -> None:
        """Closes the terminal, as a person closes its window."""
        self._looking_away.set()
        self._reader.join(10)
        os.close(self._master)
        self._master = -1

    @property
    def raw(self) -> str:
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        """Without the colours."""
        return re.sub(r"\x1b\[\d*m", "", self.raw)

    def shows(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.text.count(text) >= count, f"{text!r} {count} times in:\n{self.text}", timeout=60)

    def interrupt(self) -> int:
        """Ctrl-C."""
        os.write(self._master, b"\x03")
        return self.ended()

    def ended(self) -> int:
        """Its exit code, when all that it said was read: what it said last may still be on its way when it is gone."""
        code = self.process.wait(60)
        self._reader.join(60)
        assert not self._reader.is_alive(), "somebody has the terminal still"
        return code

    def save(self, text: str) -> None:
        """In one step: nobody finds half of it."""
        new = self.folder / "app.new"
        new.write_text(text)
        new.replace(self.folder / "app.py")

    def enough(self) -> None:
        """The steps end."""
        (self.folder / "enough").touch()

    def close(self) -> None:
        for pid in [self.process.pid, *children(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self._master >= 0:
            self.hang_up()
        print(self.text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(CODE)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[START]:
    sessions: list[Session] = []

    def make(*options: str, terminal: bool = True) -> Session:
        sessions.append(Session(folder, *options, terminal=terminal))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    with Client(f"embedded://{folder / '.runs'}") as made:
        yield made


def whole(result: object, total: int | None = None) -> list[str]:
    """Who did which step; every one is there, in order, once."""
    assert isinstance(result, list)
    assert [int(step.split()[0]) for step in result] == list(range(len(result) if total is None else total))
    return [step.split()[1] for step in result]


def test_a_save_is_a_roll_and_the_run_goes_on_in_the_new_code(start: START, client: Client) -> None:
    session = start("--processes", "2")
    session.shows(" ready: ", 2)
    handle = client.enqueue("steps", {"total": AGES})
    session.shows("step 3 by one")
    session.save(CODE.replace('"one"', '"two"'))  # as long as before, and perhaps in the same second
    session.shows("by two")
    session.shows("reloaded in")
    view = handle.view()
    assert (view.status, view.counters.strikes, view.counters.releases) == (Status.RUNNING, 0, 1)
    session.save(CODE.replace('"one"', '"six"'))
    session.shows("by six")
    session.enough()
    by = whole(handle.result(60))
    assert list(dict.fromkeys(by)) == ["one", "two", "six"]
    assert session.text.count("changed: app.py\n") == 2
    assert session.interrupt() == 0


def test_a_syntax_error_is_said_in_one_block_and_the_old_code_goes_on(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    session.save(CODE + "\ndef broken(:\n")
    session.shows("the workers continue with the previous code: fix the code and save")
    shown = session.text
    block = shown[shown.index("ERROR") :]
    assert re.search(r"module 'app' can't be imported: SyntaxError: .*\n", block)
    assert re.search(r"^dev +\| +def broken\(:\ndev +\| +\^\n", block, re.MULTILINE)
    assert shown.count("def broken(:") == 1, "said once, and not by every process"
    assert set(whole(client.enqueue("steps", {"total": 2}).result(60), 2)) == {"one"}
    session.save(CODE.replace('"one"', '"two"'))
    session.shows("reloaded in")
    assert set(whole(client.enqueue("steps", {"total": 2}).result(60), 2)) == {"two"}
    assert session.interrupt() == 0


def test_a_broken_first_import_is_a_sentence_and_the_next_save_begins(
    folder: Path, start: START, client: Client
) -> None:
    (folder / "app.py").write_text("import nowhere_to_be_found\n")
    session = start()
    session.shows("module 'app' can't be imported: No module named 'nowhere_to_be_found'")
    session.shows("no worker is running yet: fix the code and save")
    session.save(CODE)
    session.shows(" ready: ")
    assert set(whole(client.enqueue("steps", {"total": 2}).result(60), 2)) == {"one"}
    assert session.interrupt() == 0


def test_a_stop_while_nothing_can_be_imported_ends_it(folder: Path, start: START) -> None:
    (folder / "app.py").unlink()
    session = start()
    session.shows("there is no module 'app' here or on the path")
    assert session.interrupt() == 0
    assert "Traceback" not in session.text


def test_code_that_can_be_imported_and_not_begin_takes_nothing_from_the_old(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": AGES})
    session.shows("step 3 by one")
    session.save(CODE.replace("Registry()", "Registry(lifespan=lambda: 1 / 0)"))
    session.shows("the lifespan raised ZeroDivisionError")
    session.shows("the workers continue with the previous code")
    last = int(re.findall(r"step (\d+) by one", session.text)[-1])
    session.shows(f"step {last + 20} by one")
    assert (handle.view().status, handle.view().counters.releases) == (Status.RUNNING, 0)
    assert session.interrupt() == 0


def test_runs_survive_to_the_next_day(folder: Path, start: START, client: Client) -> None:
    """Ctrl-C hands them back with all they have done."""
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": AGES})
    session.shows("step 5 by one")
    assert session.interrupt() == 0
    view = handle.view()
    assert (view.status, view.counters.strikes, view.counters.releases) == (Status.QUEUED, 0, 1)
    client.close()  # the last one out
    again = start()
    again.shows("by one")
    assert "step 3 by" not in again.text, "what was saved is not done again"
    again.enough()
    with Client(f"embedded://{folder / '.runs'}") as later:
        by = whole(later.handle(handle.id).result(60))
    assert (len(by) > 6, set(by)) == (True, {"one"})
    assert again.interrupt() == 0


def test_runs_survive_a_kill_of_everything_that_is_in_the_terminal(folder: Path, start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": AGES})
    session.shows("step 5 by one")
    orphans = children(session.process.pid)
    session.process.kill()
    wait_until(lambda: all(gone(pid) for pid in orphans), "the workers have drained")
    again = start()
    again.shows("by one")
    again.enough()
    by = whole(handle.result(60))
    assert (len(by) > 6, set(by)) == (True, {"one"})


def test_what_a_handler_prints_when_nobody_reads_any_more_does_not_fail_its_run(
    folder: Path, start: START, client: Client
) -> None:
    """It holds up its event loop until nobody holds the other end: nothing is noticed before it prints."""
    (folder / "app.py").write_text(TALKS)
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("talks", {})
    session.shows("somebody reads this")
    orphans = children(session.process.pid)
    session.process.kill()
    wait_until(lambda: all(gone(pid) for pid in orphans), "the worker has drained")
    view = handle.view()
    assert (view.status, view.counters.releases, view.counters.strikes) == (Status.QUEUED, 1, 0), view.error
    assert view.note is not None
    assert view.note.text == "said"


def test_a_closed_terminal_is_a_stop(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": AGES})
    session.shows("step 3 by one")
    session.hang_up()
    assert session.process.wait(60) == 0
    assert handle.view().status == Status.QUEUED


def test_every_line_has_a_name_and_a_terminal_has_colours(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    assert client.enqueue("steps", {"total": 3}).wait(60) == Status.COMPLETED
    assert session.interrupt() == 0
    lines = [line for line in session.text.replace("^C", "").splitlines() if line]
    assert [line for line in lines if not re.match(r"(dev|coordinator|worker \d+) +\| ", line)] == []
    assert re.findall(r"^(.*)step 1 by one$", session.text, re.MULTILINE) == ["worker 1    | "]
    assert re.search(r"\x1b\[\d+mworker 1    \|\x1b\[0m step 1 by one\n", session.raw)
    assert re.search(r"\x1b\[32mINFO   \x1b\[0m ready: ", session.raw), "the worker's own lines have colours too"
    assert len(lines) == len(set(lines)), "no line twice"


def test_a_file_gets_no_colours(start: START, client: Client) -> None:
    session = start(terminal=False)
    session.shows(" ready: ")
    assert client.enqueue("steps", {"total": 3}).wait(60) == Status.COMPLETED
    session.process.send_signal(signal.SIGTERM)
    assert session.ended() == 0
    assert "\x1b" not in session.raw
    assert re.search(r"^worker 1    \| step 1 by one$", session.raw, re.MULTILINE)


def test_a_run_with_a_delay_needs_nobody_else(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    assert client.enqueue("steps", {"total": 1}, delay=0.5).wait(60) == Status.COMPLETED
    assert session.interrupt() == 0


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("redis://127.0.0.1:1/0", 4, "127.0.0.1:1/0"),
        ("memory://here", 2, "memory:// exists in one process only, and this command starts several"),
    ],
)
def test_a_server_that_can_not_be_used_is_a_sentence(start: START, url: str, code: int, says: str) -> None:
    session = start("--url", url, terminal=False)
    assert session.ended() == code
    assert says in session.text
    assert [line for line in session.text.splitlines() if "error: " in line] == session.text.splitlines()[-1:]
    assert "Traceback" not in session.text
