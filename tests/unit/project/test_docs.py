"""The documentation names only what exists: commands, options, fields, modules, keys, links."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from coordinator import Overview, RunView, ScheduleView, WorkerView
from coordinator.client.run_builder import EnqueueOptions
from coordinator.client.schedules import ScheduleOptions
from coordinator.model import address
from coordinator.model.enqueue import Options
from coordinator.model.run import MOVES
from workers import Deadline, Retry, testing
from workers.handlers.handler import Policy
from workers.handlers.registry import HandlerOptions

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
sys.path.insert(0, str(DOCS / "_ext"))

import command_reference  # type: ignore[import-not-found]  # noqa: E402  # of docs/_ext
import key_reference  # type: ignore[import-not-found]  # noqa: E402
import self_contained  # type: ignore[import-not-found]  # noqa: E402
import state_diagram  # type: ignore[import-not-found]  # noqa: E402


def page(name: str) -> str:
    return (DOCS / name).read_text()


# ---- links -----------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub and myst-parser make them."""
    headings = re.findall(
        r"^#{1,6} (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{path.name} links to {target}, which does not exist"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found.read_text()), f"{path.name} links to {target}: no such heading"


# ---- reference -------------------------------------------------------------------------------------------------------


def test_every_documented_object_exists() -> None:
    targets = re.findall(
        r"^\.\. auto(?:class|exception|function|module):: (\S+)$", page("reference/python.md"), re.MULTILINE
    )
    assert len(targets) > 60
    for target in targets:
        pkgutil.resolve_name(target)


@pytest.mark.parametrize("package", ["coordinator", "workers"])
def test_every_public_name_is_documented(package: str) -> None:
    text = page("reference/python.md")
    exported = set(importlib.import_module(package).__all__) - {
        "seal"
    }  # seal is a module: its functions are documented
    assert {name for name in exported if f":: {package}.{name}\n" not in text} == set()


def test_every_command_is_documented() -> None:
    documented = set(re.findall(r"^```\{command\} (.+)$", page("reference/commands.md"), re.MULTILINE))
    assert documented == set(command_reference.all_commands())


def test_every_key_documents_its_type_and_content() -> None:
    rows = key_reference.rows()
    assert len(rows) > 30
    assert {
        key for key, kind, text in rows if kind not in ("hash", "set", "zset", "list", "string", "stream") or not text
    } == set()


def rows(name: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table below a heading: the first cell's names -> the other cells."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page(name), maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        first, *rest = line.split(" | ")
        for one in re.findall(r"`([^`]+)`", first):
            found.setdefault(one, rest)
    return found


def test_every_option_of_enqueue_is_documented_with_its_default() -> None:
    documented = rows("reference/options.md", "Options of enqueue")
    assert set(documented) == set(get_type_hints(EnqueueOptions))
    for field in dataclasses.fields(Options):
        default = field.default_factory() if callable(field.default_factory) else field.default
        assert documented[field.name][0] == f"`{default!r}`".replace("'", '"'), field.name


def test_every_option_of_a_handler_is_documented_with_its_default() -> None:
    documented = rows("reference/options.md", "Handler options")
    own = {name: cells for name, cells in documented.items() if "." not in name}
    assert set(own) == {"kind", *get_type_hints(HandlerOptions)}
    for field in dataclasses.fields(Policy):
        shown = re.findall(r"`([^`]*)`", own[field.name][0])[0]
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name not in ("retry", "deadline"):
            assert shown == repr(default).replace("'", '"'), field.name
    parts = {name for name in documented if "." in name}
    policies = {"Retry": Retry, "Deadline": Deadline}
    assert parts == {
        f"{name}.{field.name}" for name, policy in policies.items() for field in dataclasses.fields(policy)
    }


def test_every_option_of_a_schedule_is_documented() -> None:
    assert set(rows("reference/options.md", "Options of schedule")) == set(get_type_hints(ScheduleOptions))


@pytest.mark.parametrize("view", [RunView, WorkerView, Overview, ScheduleView], ids=lambda view: str(view.__name__))
def test_every_field_of_a_view_is_documented(view: Any) -> None:
    assert set(rows("reference/views.md", view.__name__)) == {field.name for field in dataclasses.fields(view)}


def test_fields_inside_a_run_view_are_documented() -> None:
    hints = get_type_hints(RunView)
    assert set(rows("reference/views.md", "Counters")) == {
        field.name for field in dataclasses.fields(hints["counters"])
    }
    (entry, _) = get_args(hints["story"])
    assert set(rows("reference/views.md", "Story")) == {field.name for field in dataclasses.fields(entry)}


def test_every_environment_variable_is_documented() -> None:
    sources = [*(ROOT / "coordinator").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"""["'](RUNS_[A-Z_]+|REDIS_URL)["']""", path.read_text())}
    documented = set(re.findall(r"^\| `(\w+)` \|", page("reference/environment.md"), re.MULTILINE))
    assert documented == read


def test_every_scheme_and_option_of_a_url_is_documented() -> None:
    text = page("reference/urls.md")
    assert {scheme for scheme in address._SCHEMES if f"{scheme}://" not in text} == set()
    options = address._TLS_OPTIONS | address._SENTINEL_OPTIONS | address._UNIX_OPTIONS
    assert set(rows("reference/urls.md", "Options in the URL")) - {"unix://"} == options


# ---- the state diagram -----------------------------------------------------------------------------------------------


def test_drawn_states_match_the_table_of_moves() -> None:
    drawn = re.findall("<text[^>]*>(.*?)</text>", state_diagram.svg())
    labels = {re.sub("<[^>]*>", "", text) for text in drawn}
    assert {str(status) for move in MOVES for status in move if status} == set(state_diagram.STATES)
    assert {", ".join(sorted(by)) for by in MOVES.values()} <= labels


# ---- the built site --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.com/x.js">',
        '<link rel="stylesheet" href="//fonts.example.com/a.css">',
        '<img alt="" src="http://a/b">',
    ],
)
def test_page_that_loads_from_another_host_is_detected(html: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f'<a href="https://example.com">a link is fine</a>{html}')
    assert len(self_contained.foreign_requests(tmp_path)) == 1


# ---- code blocks -------------------------------------------------------------------------------------------------------

# Every Python block of these pages is executed, in order, in one namespace per page. Pages that are not listed have tests
# of their own (first-program: test_readme.py; checkpoints-alone: tests/integration; codecs: test_compression.py).
EXECUTED = [
    "coming-from/arq.md",
    "coming-from/celery.md",
    "coming-from/langgraph.md",
    "coming-from/temporal.md",
    "guides/agents.md",
    "guides/deadlines.md",
    "guides/langgraph.md",
    "guides/phases.md",
    "guides/pydantic-ai.md",
    "guides/retries.md",
    "guides/schedules.md",
    "guides/sleep.md",
    "guides/stopping.md",
    "guides/testing.md",
    "guides/waiting.md",
    "index.md",
    "reference/options.md",
]


@pytest.mark.parametrize("name", EXECUTED)
def test_code_of_every_page_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS_URL", f"memory://docs-{name}")
    blocks = re.findall(r"^```python\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)
    assert blocks
    module = ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, "docs_page", module)
    for block in blocks:
        exec(compile(block, name, "exec"), module.__dict__)  # noqa: S102  # the docs are ours
    for test in [value for title, value in vars(module).items() if title.startswith("test_")]:
        test()


def test_agent_of_the_guide_reaches_the_same_end_for_every_kill_point(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = re.findall(r"^```python\n(.*?)^```$", page("guides/agents.md"), re.DOTALL | re.MULTILINE)
    module = ModuleType("docs_agent")
    monkeypatch.setitem(sys.modules, "docs_agent", module)
    exec(compile(first, "agents.md", "exec"), module.__dict__)  # noqa: S102
    assert testing.crash_matrix(module.research.inputs("tides")).result == "tides: found it"


# ---- names of the code -------------------------------------------------------------------------------------------------


def defined_names(path: Path) -> set[str]:
    """Return the functions and classes that a file defines; methods as Class.method."""
    text = path.read_text()
    if path.suffix == ".lua":
        return set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_every_function_named_in_the_life_of_a_run_exists() -> None:
    named = re.findall(r"`((?:coordinator|workers)/[\w/]+\.(?:py|lua)):([\w.]+)`", page("explanation/life-of-a-run.md"))
    assert len(named) > 30
    missing = {f"{path}:{name}" for path, name in named if name not in defined_names(ROOT / path)}
    assert missing == set()


@pytest.mark.parametrize(
    "path",
    [
        *sorted((DOCS / "explanation").glob("*.md")),
        *sorted((DOCS / "operations").glob("*.md")),
        ROOT / "CONTRIBUTING.md",
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_named_file_exists(path: Path) -> None:
    named = re.findall(
        r"`((?:coordinator|workers|tests|scripts|docs|examples)/[\w./-]*?)(?::[\w.]+)?`", path.read_text()
    )
    assert {
        name for name in named if "NAME" not in name and "_build" not in name and not (ROOT / name).exists()
    } == set()
