"""The documentation names only what exists: commands, options, fields, modules, keys, links."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest

from coordinator.model.run import MOVES

ROOT = Path(__file__).parents[2]
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


def test_every_key_says_its_type_and_its_contents() -> None:
    rows = key_reference.rows()
    assert len(rows) > 30
    assert {
        key for key, kind, text in rows if kind not in ("hash", "set", "zset", "list", "string") or not text
    } == set()


# ---- the state diagram -----------------------------------------------------------------------------------------------


def test_the_drawn_states_are_those_of_the_table_of_moves() -> None:
    drawn = state_diagram.svg()
    moves = state_diagram.drawn_moves()
    assert {str(status) for move in moves for status in move if status} == set(state_diagram.STATES)
    for by in moves.values():
        assert f">{', '.join(sorted(by))}</text>" in drawn
    assert set(moves) <= set(MOVES)


# ---- the built site --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.com/x.js">',
        '<link rel="stylesheet" href="//fonts.example.com/a.css">',
        '<img alt="" src="http://a/b">',
    ],
)
def test_a_page_that_loads_from_another_host_is_found(html: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f'<a href="https://example.com">a link is fine</a>{html}')
    assert len(self_contained.foreign_requests(tmp_path)) == 1
