"""New code is imported in a process of its own first. Whatever it does there, the caller gets a verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.dev import import_trial as trial
from workers.dev.import_trial import try_import

GOOD = """
from helping import kind
from workers import AsyncRun, Registry

runs = Registry()


@runs.handler(kind=kind, grace=7.5)
async def one(run: AsyncRun) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helping.py").write_text("kind = 'helped'\n")
    return tmp_path


async def test_verdict_on_good_code_lists_its_files(folder: Path) -> None:
    (folder / "app.py").write_text(GOOD)
    verdict = await try_import(["app:runs"])
    assert (verdict.problem, verdict.grace) == ("", 7.5)
    assert set(verdict.files) == {str(folder / "app.py"), str(folder / "helping.py")}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:", "module 'app' can't be imported: SyntaxError: "),
        ("import helping\nhelping.nothing", "module 'app' can't be imported: AttributeError: "),
        ("raise SystemExit(3)", "app:runs can't be imported: SystemExit: 3"),
        ("import os; os.abort()", "app:runs can't be imported: the process that tried it ended with exit code -6"),
        ("import os; os._exit(0)", "app:runs can't be imported: the process that tried it ended with exit code 0"),
        ("runs = 1", "'app:runs' is not a Registry: it is int"),
        ("from workers import Registry\nruns = Registry()", "app:runs has no handlers: "),
    ],
)
async def test_verdict_on_bad_code_is_one_sentence(folder: Path, text: str, says: str) -> None:
    (folder / "app.py").write_text(text)
    assert (await try_import(["app:runs"])).problem.startswith(says)


async def test_verdict_shows_the_line_of_the_mistake_and_no_line_of_this_package(folder: Path) -> None:
    (folder / "app.py").write_text("import helping\n")
    (folder / "helping.py").write_text("\n\nprint(unknown)\n")
    verdict = await try_import(["app:runs"])
    _, *lines = verdict.problem.splitlines()
    assert [line.strip() for line in lines if "File" in line] == [
        f'File "{folder / "app.py"}", line 1, in <module>',
        f'File "{folder / "helping.py"}", line 3, in <module>',
    ]
    assert set(verdict.files) >= {str(folder / "app.py"), str(folder / "helping.py")}, (
        "the files in which the mistake will be fixed"
    )


async def test_output_of_a_module_is_not_taken_for_the_verdict(folder: Path) -> None:
    (folder / "app.py").write_text("print('{}')\nruns = 1\n")
    assert (await try_import(["app:runs"])).problem == "'app:runs' is not a Registry: it is int"


@pytest.mark.matrix("waits through a timeout")
async def test_import_that_never_ends_times_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "IMPORT_TIMEOUT", 3.0)
    (folder / "app.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    verdict = await try_import(["app:runs"])
    assert verdict.problem == "app:runs can't be imported: the import did not end within 3 s"
    if (folder / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), 0)
