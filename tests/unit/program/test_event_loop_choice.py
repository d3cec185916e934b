"""RUNS_LOOP chooses the event loop of the processes of a fleet."""

from __future__ import annotations

import asyncio
import sys

import pytest

from coordinator.errors import BadOption
from workers.program.registries import fast_runner


async def current_loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def run_and_close() -> str:
    run = fast_runner()
    try:
        return str(run(current_loop()))
    finally:
        run.__self__.close()


@pytest.mark.parametrize(("variable", "loop"), [("", "uvloop"), ("uvloop", "uvloop"), ("asyncio", "asyncio")])
def test_variable_chooses_the_event_loop(monkeypatch: pytest.MonkeyPatch, variable: str, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    monkeypatch.setenv("RUNS_LOOP", variable)
    assert run_and_close() == loop


def test_asyncio_is_used_if_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.delenv("RUNS_LOOP", raising=False)
    assert run_and_close() == "asyncio"


@pytest.mark.parametrize(("variable", "sentence"), [("trio", "use asyncio or uvloop"), ("uvloop", "not installed")])
def test_event_loop_that_can_not_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, sentence: str
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.setenv("RUNS_LOOP", variable)
    with pytest.raises(BadOption, match=sentence):
        fast_runner()
