"""Fail the build if a page would request anything from another host: a script, a style sheet, a font or an image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

# Links that a reader follows (<a href>) are no requests of the page.
REQUESTS = re.compile(
    r"""(?:\bsrc\s*=\s*["']|<link\b[^>]*\bhref\s*=\s*["']|url\(\s*["']?|@import\s+["'])(?:https?:)?//[^"')\s]+"""
)


def foreign_requests(folder: Path) -> list[str]:
    """Return "file: request" for everything that the pages and style sheets in a folder load from another host."""
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in (".html", ".css"))
    return [f"{path.relative_to(folder)}: {found}" for path in files for found in REQUESTS.findall(path.read_text())]


def check(app: Any, error: Exception | None) -> None:
    if error is None and (found := foreign_requests(Path(app.outdir))):
        raise ExtensionError("the site must load nothing from another host: " + "; ".join(found[:5]))


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
