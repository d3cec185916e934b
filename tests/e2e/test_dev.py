"""`workers dev` as a developer uses it: in a terminal, with an editor and Ctrl-C."""

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

# The steps end when the test opens a gate, so a slow machine can not finish them before the test has looked.
MANY_STEPS = 100_000
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
    """One `workers dev` on a terminal of its own, and the text that it shows."""

    def __init__(self, folder: Path, *options: str, terminal: bool = True) -> None:
        self.folder, self._shown, self._looking_away = folder, b"", threading.Event()
        self._master, slave = os.openpty() if terminal else os.pipe()
        environment = {k: v for k, v in os.environ.items() if k not in ("RUNS_URL", "REDIS_URL", "NO_COLOR")}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / "workers"), "dev", "app:runs", *options],
            cwd=folder, env=environment | {"TERM": "xterm"}, stdin=slave if terminal else subprocess.DEVNULL,
            stdout=slave, stderr=slave, start_new_session=True,
            # Only the process itself can make the terminal its controlling terminal. No thread holds a lock at this
            # point.
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None,  # noqa: PLW1509
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # A terminal reports in this way that its other side is closed.
            while not self._looking_away.is_set():
                if select.select([self._master], [], [], 0.05)[0]:
                    if not (part := os.read(self._master, 65536)):
                        return
                    self._shown += part

    def hang_up(self) -> None:
        """Close the terminal, as a user closes the window."""
        self._looking_away.set()
        self._reader.join(10)
        os.close(self._master)
        self._master = -1

    @property
    def raw(self) -> str:
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        """Return the text without the colours."""
        return re.sub(r"\x1b\[\d*m", "", self.raw)

    def shows(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.text.count(text) >= count, f"{text!r} {count} times in:\n{self.text}", timeout=60)

    def interrupt(self) -> int:
        """Press Ctrl-C."""
        os.write(self._master, b"\x03")
        return self.ended()

    def ended(self) -> int:
        """Return the exit code after all output was read. The last output may arrive after the process is gone."""
        code = self.process.wait(60)
        self._reader.join(60)
        assert not self._reader.is_alive(), "another process still has the terminal open"
        return code

    def save(self, text: str) -> None:
        """Save a file in one step, so that no process reads half of it."""
        new = self.folder / "app.new"
        new.write_text(text)
        new.replace(self.folder / "app.py")

    def enough(self) -> None:
        """Let the steps end."""
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


def steps_by_process(result: object, total: int | None = None) -> list[str]:
    """Return which process did each step, after checking that every step was done once and in order."""
    assert isinstance(result, list)
    assert [int(step.split()[0]) for step in result] == list(range(len(result) if total is None else total))
    return [step.split()[1] for step in result]


def test_saving_a_file_rolls_and_the_run_continues_in_the_new_code(start: START, client: Client) -> None:
    session = start("--processes", "2")
    session.shows(" ready: ", 2)
    handle = client.enqueue("steps", {"total": MANY_STEPS})
    session.shows("step 3 by one")
    # The new file has the same length, and perhaps the same time of change in seconds.
    session.save(CODE.replace('"one"', '"two"'))
    session.shows("by two")
    session.shows("reloaded in")
    view = handle.view()
    assert (view.status, view.counters.strikes, view.counters.releases) == (Status.RUNNING, 0, 1)
    session.save(CODE.replace('"one"', '"six"'))
    session.shows("by six")
    session.enough()
    by = steps_by_process(handle.result(60))
    assert list(dict.fromkeys(by)) == ["one", "two", "six"]
    assert session.text.count("changed: app.py\n") == 2
    assert session.interrupt() == 0


def test_syntax_error_is_shown_in_one_block_and_the_old_code_keeps_running(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    session.save(CODE + "\ndef broken(:\n")
    session.shows("the workers continue with the previous code: fix the code and save")
    shown = session.text
    block = shown[shown.index("ERROR") :]
    assert re.search(r"module 'app' can't be imported: SyntaxError: .*\n", block)
    assert re.search(r"^dev +\| +def broken\(:\ndev +\| +\^\n", block, re.MULTILINE)
    assert shown.count("def broken(:") == 1, "said once, and not by every process"
    assert set(steps_by_process(client.enqueue("steps", {"total": 2}).result(60), 2)) == {"one"}
    session.save(CODE.replace('"one"', '"two"'))
    session.shows("reloaded in")
    assert set(steps_by_process(client.enqueue("steps", {"total": 2}).result(60), 2)) == {"two"}
    assert session.interrupt() == 0


def test_failed_first_import_is_reported_and_the_next_save_starts(folder: Path, start: START, client: Client) -> None:
    (folder / "app.py").write_text("import nowhere_to_be_found\n")
    session = start()
    session.shows("module 'app' can't be imported: No module named 'nowhere_to_be_found'")
    session.shows("no worker is running yet: fix the code and save")
    session.save(CODE)
    session.shows(" ready: ")
    assert set(steps_by_process(client.enqueue("steps", {"total": 2}).result(60), 2)) == {"one"}
    assert session.interrupt() == 0


def test_stop_while_the_import_fails_ends_the_process(folder: Path, start: START) -> None:
    (folder / "app.py").unlink()
    session = start()
    session.shows("there is no module 'app' here or on the path")
    assert session.interrupt() == 0
    assert "Traceback" not in session.text


def test_code_that_imports_but_can_not_start_leaves_the_old_code_running(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": MANY_STEPS})
    session.shows("step 3 by one")
    session.save(CODE.replace("Registry()", "Registry(lifespan=lambda: 1 / 0)"))
    session.shows("the lifespan raised ZeroDivisionError")
    session.shows("the workers continue with the previous code")
    last = int(re.findall(r"step (\d+) by one", session.text)[-1])
    session.shows(f"step {last + 20} by one")
    assert (handle.view().status, handle.view().counters.releases) == (Status.RUNNING, 0)
    assert session.interrupt() == 0


def test_runs_continue_in_the_next_session(folder: Path, start: START, client: Client) -> None:
    """Check that Ctrl-C releases the runs with all their progress."""
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": MANY_STEPS})
    session.shows("step 5 by one")
    assert session.interrupt() == 0
    view = handle.view()
    assert (view.status, view.counters.strikes, view.counters.releases) == (Status.QUEUED, 0, 1)
    client.close()  # The last process to leave stops the server.
    again = start()
    again.shows("by one")
    assert "step 3 by" not in again.text, "what was saved is not done again"
    again.enough()
    with Client(f"embedded://{folder / '.runs'}") as later:
        by = steps_by_process(later.handle(handle.id).result(60))
    assert (len(by) > 6, set(by)) == (True, {"one"})
    assert again.interrupt() == 0


def test_runs_survive_a_kill_of_all_processes_of_the_terminal(folder: Path, start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": MANY_STEPS})
    session.shows("step 5 by one")
    orphans = children(session.process.pid)
    session.process.kill()
    wait_until(lambda: all(gone(pid) for pid in orphans), "the workers have drained")
    again = start()
    again.shows("by one")
    again.enough()
    by = steps_by_process(handle.result(60))
    assert (len(by) > 6, set(by)) == (True, {"one"})


def test_print_to_a_closed_pipe_does_not_fail_the_run(folder: Path, start: START, client: Client) -> None:
    """Block the event loop until the other end of the pipe is closed, so that the handler's print is the first write that fails."""
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


def test_closed_terminal_stops_the_session(start: START, client: Client) -> None:
    session = start()
    session.shows(" ready: ")
    handle = client.enqueue("steps", {"total": MANY_STEPS})
    session.shows("step 3 by one")
    session.hang_up()
    assert session.process.wait(60) == 0
    assert handle.view().status == Status.QUEUED


def test_every_line_names_its_process_and_terminals_get_colours(start: START, client: Client) -> None:
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


def test_output_to_a_file_has_no_colours(start: START, client: Client) -> None:
    session = start(terminal=False)
    session.shows(" ready: ")
    assert client.enqueue("steps", {"total": 3}).wait(60) == Status.COMPLETED
    session.process.send_signal(signal.SIGTERM)
    assert session.ended() == 0
    assert "\x1b" not in session.raw
    assert re.search(r"^worker 1    \| step 1 by one$", session.raw, re.MULTILINE)


def test_delayed_run_needs_no_other_process(start: START, client: Client) -> None:
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
def test_unusable_server_is_reported_in_one_sentence(start: START, url: str, code: int, says: str) -> None:
    session = start("--url", url, terminal=False)
    assert session.ended() == code
    assert says in session.text
    assert [line for line in session.text.splitlines() if "error: " in line] == session.text.splitlines()[-1:]
    assert "Traceback" not in session.text
