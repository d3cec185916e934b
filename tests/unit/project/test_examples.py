"""The examples reach the same end for every kill point."""

from __future__ import annotations

import asyncio
import re
import runpy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from examples import (
    anthropic_loop,
    approval,
    approval_page,
    charge,
    cursor,
    deadlines,
    map_reduce,
    openai_loop,
    reminder,
    report,
    research_agent,
    streaming,
)
from examples.browser_agent import agent as browser_agent
from tests.waiting import eventually
from workers import Extend, Kill, Watched, testing
from workers.testing import AsyncRun


def effects(model: research_agent.ScriptedModel) -> tuple[list[int], list[str]]:
    return model.asked, model.looked_up


def test_agent_reaches_the_same_answer_for_every_kill_point() -> None:
    matrix = testing.crash_matrix(
        research_agent.research.inputs("tides"), resources=research_agent.ScriptedModel, effects=effects
    )
    assert matrix.result == 'From 2 pages: what {"page": 2} says'
    assert matrix.effects == ([1, 3, 5], ["call-1", "call-2"])
    assert matrix.cuts >= 6


@pytest.mark.parametrize("example", [openai_loop, anthropic_loop])
def test_loops_with_the_clients_of_providers_ask_once_for_each_reply(example: Any) -> None:
    """The clients are the real ones, and scripted models answer in the format of the APIs."""

    class Scripted:
        def __init__(self) -> None:
            self.asked: list[int] = []
            client = example.scripted_client(self.asked)
            self.chat, self.messages = getattr(client, "chat", None), getattr(client, "messages", None)

    for matrix in (testing.crash_matrix, testing.drain_matrix):
        done = matrix(example.research.inputs("tides"), resources=Scripted, effects=lambda world: world.asked)
        assert done.result == "From 2 pages: ['search says: page 1', 'search says: page 2']"
        assert done.effects == [1, 3, 5]


async def test_model_is_not_asked_again_for_a_saved_reply() -> None:
    """The run is killed between the answer of the model and the tool call."""
    model = research_agent.ScriptedModel()
    first = AsyncRun(model, backing=testing.MemoryBacking(crash_at=1))
    with pytest.raises(testing.Crash):
        await research_agent.research(first, "tides")
    assert (model.asked, model.looked_up) == ([1], [])
    again = first.after_crash()
    assert [call.id for call in again.messages.open_calls()] == ["call-1"]
    assert await research_agent.research(again, "tides") == 'From 2 pages: what {"page": 2} says'
    assert model.asked == [1, 3, 5]


def test_report_runs_each_phase_once_for_every_kill_point() -> None:
    matrix = testing.crash_matrix(report.report.inputs("tides"))
    assert matrix.cuts == 3
    assert matrix.result == "What tides are: a paragraph.\nWhy tides matter: a paragraph."


def test_cursor_continues_where_it_stopped() -> None:
    matrix = testing.crash_matrix(cursor.copy_rows.inputs(450))
    assert (matrix.cuts, matrix.result) == (5, 450)


def test_a_deploy_at_any_cut_repeats_nothing_in_the_examples() -> None:
    agent = testing.drain_matrix(
        research_agent.research.inputs("tides"), resources=research_agent.ScriptedModel, effects=effects
    )
    assert agent.effects == ([1, 3, 5], ["call-1", "call-2"])
    assert testing.drain_matrix(report.report.inputs("tides")).cuts == 3
    assert testing.drain_matrix(cursor.copy_rows.inputs(450)).result == 450
    assert testing.drain_matrix(deadlines.crawl.inputs(3)).result == 3


def test_a_deploy_at_any_cut_repeats_nothing_in_the_program_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    app = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "first" / "app.py"))
    sleep, asked = asyncio.sleep, list[float]()

    async def count_calls(seconds: float) -> None:
        asked.append(seconds)
        await sleep(0)  # the pause of the example, without its time

    monkeypatch.setattr(asyncio, "sleep", count_calls)
    matrix = testing.drain_matrix(app["research"].inputs("tides"))
    assert matrix.result == "tides: read 5 pages, all is well"
    assert len(asked) == (1 + matrix.cuts) * (6 + 5), "each round asks the model 6 times and searches 5 times"
    assert testing.drain_matrix(app["report"].inputs("salt")).result == "what is salt - why salt - after salt"


def watched(**more: Any) -> Watched:
    facts = {"id": "id", "kind": "crawl", "inputs": {"pages": 3}, "meta": {}, "attempt": 1, "age": 600.0, "idle": 0.0}
    seen = {"iteration": 7, "phases": (), "messages": (), "note": None, "extensions": 0, "extended": 0.0}
    return Watched(**{**facts, **seen, "deadline": deadlines.crawl.deadline, **more})


def test_escalator_of_the_example_decides() -> None:
    assert deadlines.patience(watched()) == Extend(300)
    assert deadlines.patience(watched(idle=150.0)) == Kill("nothing new for 150 s, after page 7")
    assert deadlines.patience(watched(extensions=3)) == Kill("it was extended three times")


def test_crawl_reaches_the_same_end_for_every_kill_point() -> None:
    assert testing.crash_matrix(deadlines.crawl.inputs(3)).result == 3


def test_page_about_deadlines_shows_the_example() -> None:
    root = Path(__file__).parents[3]
    (shown,) = re.findall(
        r"^```python\n(.*?)^```$", (root / "docs/guides/deadlines.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert shown == (root / "examples/deadlines.py").read_text()


def test_examples_run_with_the_whole_product() -> None:
    with testing.worker(report.runs) as client:
        assert client.enqueue(report.report.inputs("tides")).result(30).startswith("What tides are")


@pytest.mark.parametrize("matrix", [testing.crash_matrix, testing.drain_matrix], ids=["crash", "drain"])
def test_words_are_counted_once_for_every_kill_point(matrix: Any) -> None:
    assert matrix(map_reduce.count_all.inputs(["to be or not", "to be"])).result == {
        "to": 2,
        "be": 2,
        "or": 1,
        "not": 1,
    }


def test_words_are_counted_by_children_in_the_whole_product() -> None:
    with testing.worker(map_reduce.runs) as client:
        assert client.enqueue(map_reduce.count_all.inputs(["a b", "b"])).result(30) == {"a": 1, "b": 2}


@pytest.mark.parametrize("matrix", [testing.crash_matrix, testing.drain_matrix], ids=["crash", "drain"])
def test_order_is_charged_once_for_every_kill_point(matrix: Any) -> None:
    found = matrix(charge.order.inputs("1001", 4200), charge.Bank, lambda bank: (bank.charges, bank.mails))
    assert len(found.effects[0]) == 1
    assert found.effects[1] == ["order 1001: 42.00 were charged"]
    assert found.unknown == (2 if matrix is testing.crash_matrix else 0), "only the mail has no check"


# ---- waits -------------------------------------------------------------------------------------------------------------

YES, NO = {"granted": True, "by": "ada"}, {"granted": False, "by": "ada"}


@pytest.mark.parametrize("matrix", [testing.crash_matrix, testing.drain_matrix], ids=["crash", "drain"])
@pytest.mark.parametrize(
    ("signals", "said", "bought"),
    [
        ([("approval.call-1", YES)], "sold tea", ["tea"]),
        ([("approval.call-1", NO)], "ada said no", []),
        ([], "nobody has answered for three days", []),
    ],
    ids=["yes", "no", "silence"],
)
def test_purchase_waits_for_its_approval(matrix: Any, signals: Any, said: str, bought: list[str]) -> None:
    found = matrix(
        approval.purchase.inputs("tea"),
        resources=approval.ScriptedModel,
        effects=lambda model: (model.asked, model.bought),
        signals=signals,
    )
    assert found.result == f"The shop says: {said}"
    assert found.effects == ([1, 3], bought)
    assert found.waits == 1


@pytest.mark.parametrize("matrix", [testing.crash_matrix, testing.drain_matrix], ids=["crash", "drain"])
def test_reminder_mails_until_it_is_done(matrix: Any) -> None:
    def mails(mailer: reminder.Mailer) -> list[str]:
        return mailer.sent

    found = matrix(reminder.remind.inputs("plants"), resources=reminder.Mailer, effects=mails)
    assert (found.result, found.effects, found.waits) == ("nobody has answered", ["plants"] * 3, 4)
    found = matrix(reminder.remind.inputs("plants"), resources=reminder.Mailer, effects=mails, signals=[("done", None)])
    assert (found.result, found.effects) == ("done", ["plants"])


def test_reminder_sleeps_for_a_week() -> None:
    run = testing.Run(reminder.Mailer())
    begin = run.now
    run.send("done")
    assert reminder.remind(run, "plants") == "done"
    assert run.now - begin == timedelta(weeks=1)


async def request(method: str, path: str) -> tuple[int, str]:
    """Send a request to the page, and return the status and the body of its response."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
    await approval_page.page({**scope, "scheme": "http", "server": ("test", 80)}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def test_page_shows_the_waiting_run_and_sends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://approval-page"
    monkeypatch.setenv("RUNS_URL", url)
    monkeypatch.setenv("RUNS_NAMESPACE", "testing")
    with testing.worker(approval.runs, url=url) as client:
        handle = await asyncio.to_thread(client.enqueue, approval.purchase.inputs("tea & <b>"))
        await eventually(lambda: handle.view().waiting is not None, "the run waits")
        async with approval_page.page.router.lifespan_context(approval_page.page):
            status, shown = await request("GET", "/")
            assert (status, "May I buy tea &amp; &lt;b&gt;?" in shown) == (200, True), shown
            (action, *_) = re.findall(r'formaction="(\S+/yes)"', shown)
            assert (await request("POST", action))[0] == 303
            assert await asyncio.to_thread(handle.result, 30) == "The shop says: sold tea & <b>"
            assert (await request("POST", action))[0] == 303, "a second click has the answer of the first"
            assert (await request("POST", action.replace("call-1", "call-2")))[0] == 409
            assert "Nothing." in (await request("GET", "/"))[1]


def test_typed_text_is_the_same_for_every_kill_point(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))  # the pauses of the example take no time
    matrix = testing.crash_matrix(streaming.tell.inputs("a tide"))
    assert matrix.cuts == streaming.PARTS
    assert "".join(event["delta"] for event in matrix.emitted) == matrix.result
    assert matrix.result.startswith("Once there was a tide. ")


@pytest.mark.parametrize(("granted", "result"), [(True, "Tides rise and fall"), (False, "rejected")])
def test_agent_of_the_page_reaches_the_same_end_for_every_kill_point(
    granted: bool, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_agent, "SECONDS_PER_WORD", 0)
    found = testing.crash_matrix(browser_agent.write.inputs("Tides"), signals=[("approval", {"granted": granted})])
    assert found.result.startswith(result)
