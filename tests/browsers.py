"""A real browser for tests: Debian's Chromium, driven by playwright.

Without Chromium the tests are skipped; in CI they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # most tests with processes need no browser
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
SENTENCE = "chromium is not installed (Debian: apt-get install chromium)"


def find_chromium() -> str:
    """Return the path of Chromium. Without it, skip the test, or let it fail in CI."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None and os.environ.get("CI") == "true":
        pytest.fail(SENTENCE, pytrace=False)
    if path is None:
        pytest.skip(SENTENCE)
    return path


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser without a window, for one test. Playwright's event loop would disturb the asynchronous tests after it."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
