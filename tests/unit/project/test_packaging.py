"""The package, as a package index shows it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_description_has_no_link_that_leads_nowhere_and_no_diagram_that_is_not_drawn():
    readme = (ROOT / "README.md").read_text()
    text = hook().description(readme)
    assert "[tutorial](docs/" in readme
    assert "tutorial (`docs/start/first-program.md`)" in text
    assert not re.findall(r"\]\((?!https?://|#)", text)
    assert "```mermaid" in readme
    assert "```mermaid" not in text
    home = hook().description(readme, "https://example.org/it")
    assert "[tutorial](https://example.org/it/blob/main/docs/start/first-program.md)" in home


def test_every_python_of_the_classifiers_is_tested_by_the_public_ci():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    named = {found[1] for one in PROJECT["project"]["classifiers"] if (found := re.search(r":: (3\.\d+)$", one))}
    assert set(workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]) == named


def test_both_packages_say_that_they_have_types():
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").exists()
