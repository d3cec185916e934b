"""A change of the code is reported once, when it is complete."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from workers.dev import file_watcher as watching
from workers.dev.file_watcher import FileWatcher, changed_files, take_snapshot


class Turns:
    """A clock without real time: each wait performs the next action."""

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)
        self.waits: list[float] = []

    def now(self) -> float:
        return 0.0

    monotonic = now

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def asleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        step = self._steps.pop(0)
        if callable(step):
            step()


def test_python_files_are_watched_except_installed_and_hidden_ones(tmp_path: Path) -> None:
    seen = ("app.py", "deep/er/more.py")
    unseen = ("notes.txt", ".hidden/a.py", "__pycache__/a.py", "node_modules/a.py", "env/lib/a.py", ".a.py")
    for name in (*seen, *unseen, "env/pyvenv.cfg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(take_snapshot(tmp_path)) == sorted(str(tmp_path / name) for name in seen)


def test_changed_file_of_the_same_size_and_second_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text("1")
    before = take_snapshot(tmp_path)
    facts = file.stat()
    file.write_text("2")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert changed_files(before, take_snapshot(tmp_path)) == [str(file)]


def test_replaced_file_with_the_same_times_is_detected(tmp_path: Path) -> None:
    file, new = tmp_path / "app.py", tmp_path / "new"
    file.write_text("1")
    facts, before = file.stat(), take_snapshot(tmp_path)
    new.write_text("2")
    os.utime(new, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    new.rename(file)
    assert changed_files(before, take_snapshot(tmp_path)) == [str(file)]


def test_circular_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "app.py").touch()
    assert list(take_snapshot(tmp_path)) == [str(tmp_path / "app.py")]


async def test_change_is_reported_after_the_files_stop_changing(tmp_path: Path) -> None:
    app, more = tmp_path / "app.py", tmp_path / "more.py"
    app.write_text("one")
    clock = Turns(lambda: app.write_text("two and"), lambda: more.write_text("three"), None)
    watch = FileWatcher(tmp_path, clock)
    assert await watch.wait_for_change() == [str(app), str(more)]
    assert clock.waits == [watching.FILE_POLL_SECONDS, watching.SETTLE_SECONDS, watching.SETTLE_SECONDS]


async def test_change_is_reported_even_if_it_happened_before_the_wait(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    watch = FileWatcher(tmp_path, Turns(None, None))
    app.write_text("one")
    assert await watch.wait_for_change() == [str(app)]
    app.unlink()
    assert await watch.wait_for_change() == [str(app)]


async def test_handlers_outside_the_directory_are_watched(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere.py"
    here.mkdir()
    elsewhere.write_text("one")
    watch = FileWatcher(here, Turns(lambda: elsewhere.write_text("two and"), None))
    watch.watch_also([str(elsewhere)])
    assert await asyncio.wait_for(watch.wait_for_change(), 10) == [str(elsewhere)]
