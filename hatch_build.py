"""Build hooks: the description of the package on a package index.

A package index shows README.md without the repository around it: relative links lead nowhere, and a mermaid diagram stays code. So
the description names the files instead of linking to them (the source distribution contains them), and the diagram is text.
When the project gets a public home, put its address into `[tool.hatch.metadata.hooks.custom] home`: then the links lead there.
"""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)]+)\)")


class DescriptionHook(MetadataHookInterface):
    """Sets `readme` when the package is built."""

    def update(self, metadata: dict) -> None:
        """Set the description."""
        home = str(self.config.get("home", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text, home)}


def description(readme: str, home: str = "") -> str:
    """Return the README as a package index can show it."""
    link = rf"[\1]({home}/blob/main/\2)" if home else r"\1 (`\2`)"
    return _LINK.sub(link, readme).replace("```mermaid\n", "```text\n")
