"""The package, as a package index shows it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.metadata.spec import get_core_metadata_constructors
from hatchling.plugin.manager import PluginManager

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


HOME_VARIABLES = ("RUNS_PROJECT_HOME", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY")


def built_metadata(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> Message:
    """Return the metadata that a build in this environment writes into the wheel."""
    for name in HOME_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    return Parser().parsestr(get_core_metadata_constructors()["2.4"](metadata))


@pytest.mark.parametrize(
    "environment",
    [
        {"RUNS_PROJECT_HOME": "https://example.org/it/"},
        {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "it"},
    ],
)
def test_a_build_that_knows_the_public_repository_writes_its_addresses(monkeypatch, environment):
    metadata = built_metadata(monkeypatch, environment)
    assert metadata.get_all("Project-URL") == [
        "Homepage, https://example.org/it",
        "Documentation, https://example.org/it/blob/main/docs/index.md",
        "Changelog, https://example.org/it/blob/main/CHANGELOG.md",
        "Issues, https://example.org/it/issues",
    ]
    assert "[tutorial](https://example.org/it/blob/main/docs/start/first-program.md)" in metadata.get_payload()


def test_a_build_that_knows_no_public_repository_writes_no_address(monkeypatch):
    metadata = built_metadata(monkeypatch, {})
    assert metadata.get_all("Project-URL") is None
    assert "tutorial (`docs/start/first-program.md`)" in metadata.get_payload()


def test_an_address_that_is_not_public_stops_the_build(monkeypatch):
    with pytest.raises(ValueError, match="must begin with https://, and is '/home/me/it'"):
        built_metadata(monkeypatch, {"RUNS_PROJECT_HOME": "/home/me/it"})


def test_the_addresses_lead_to_files_that_exist():
    paths = [address.partition("/blob/main/")[2] for address in hook().urls("https://example.org/it").values()]
    assert all((ROOT / path).is_file() for path in paths if path)


def test_every_python_of_the_classifiers_is_tested_by_the_public_ci():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    named = {found[1] for one in PROJECT["project"]["classifiers"] if (found := re.search(r":: (3\.\d+)$", one))}
    assert set(workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]) == named


def test_both_packages_say_that_they_have_types():
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").exists()


def test_the_wheel_has_the_files_of_the_page_and_the_scripts():
    packed = {one.distribution_path for one in WheelBuilder(str(ROOT)).recurse_included_files()}
    for folder in ("coordinator/web/page/assets", "coordinator/store/lua"):
        needed = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert needed
        assert needed <= packed
