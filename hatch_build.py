"""Build hooks: the description and the addresses of the package on a package index.

A package index shows README.md without the repository around it: relative links lead nowhere, and a mermaid diagram stays code. So
the description names the files instead of linking to them (the source distribution contains them), and the diagram is text.

A build that knows the address of the public repository writes links instead, and fills in `[project.urls]`. It takes the address
from `[tool.hatch.metadata.hooks.custom] home`, from the variable RUNS_PROJECT_HOME, or from the variables that GitHub sets for
the steps of a workflow, in this order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")
_HOME = re.compile(r"https://\S+")


class DescriptionHook(MetadataHookInterface):
    """Sets `readme` and `urls` when the package is built."""

    def update(self, metadata: dict) -> None:
        """Set the description, and the addresses if the public repository is known."""
        home = find_home(str(self.config.get("home", "")), os.environ)
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text, home)}
        if home:
            metadata["urls"] = urls(home)


def find_home(configured: str, environment: Mapping[str, str]) -> str:
    """Return the address of the public repository without a slash at its end, or "" if no source names one.

    Raises:
        ValueError: An address does not begin with https://.
    """
    server, repository = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_REPOSITORY", "")
    workflow = f"{server}/{repository}" if server and repository else ""
    home = (configured or environment.get("RUNS_PROJECT_HOME", "") or workflow).rstrip("/")
    if home and not _HOME.fullmatch(home):
        raise ValueError(f"the address of the public repository must begin with https://, and is {home!r}")
    return home


def urls(home: str) -> dict[str, str]:
    """Return the addresses that a package index shows beside the description."""
    return {
        "Homepage": home,
        "Documentation": f"{home}/blob/main/docs/index.md",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def description(readme: str, home: str = "") -> str:
    """Return the README as a package index can show it."""
    link = rf"[\1]({home}/blob/main/\2)" if home else r"\1 (`\2`)"
    return _LINK.sub(link, readme).replace("```mermaid\n", "```text\n")
