"""A pytest plugin that switches Sentry on, with all integrations that Sentry enables by itself: `pytest -p tests.with_sentry`."""

from __future__ import annotations

import sentry_sdk


def pytest_sessionstart() -> None:
    sentry_sdk.init(dsn="https://key@localhost/1", before_send=lambda event, hint: None, traces_sample_rate=1.0)
    sentry_sdk.get_client().transport = None
