"""The page in a real Chromium: what a person sees when processes are killed, rolled and restarted, and what a script can't do."""

from __future__ import annotations

import json
import os
import re
import signal
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from threading import Thread
from typing import Any

import pytest
import redis

from coordinator import BadName, Client, Status
from coordinator.encoding.codec import encode
from coordinator.model.run_id import RunIds
from coordinator.store.keys import Namespace
from coordinator.store.plans import clients as client_plans
from coordinator.store.transport.wire import Wire, drive
from tests.conftest import StartServer
from tests.e2e.conftest import MakeStage
from tests.e2e.page.support import SCRIPT, OpenPage, Page, board, go, show, start_web, wait_for_chips
from tests.e2e.processes import Stage
from tests.servers import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix("starts a browser")


def test_killed_process_is_seen_and_its_runs_move_to_other_cards(
    stage: Stage, client: Client, open_page: OpenPage
) -> None:
    stage.coordinator()
    stage.fleet(2)
    page = open_page()
    handles = client.enqueue_many([("steps", {"total": 10_000, "seconds": 0.05, "gate": "all"})] * 8)
    ids = {handle.id for handle in handles}
    before = wait_for_chips(page, 2, 8)
    fleet = page.locator("section.panel", has=page.get_by_role("heading", name="Workers")).locator(".aside")
    wait_until(lambda: re.fullmatch(r"2 processes, \d+ slots, 1 coordinator", fleet.inner_text()), "the counts", 60)
    victim, lost = max(before.items(), key=lambda item: len(item[1]))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: victim not in board(page), "the card of the killed process to go", 60)
    wait_until(lambda: {run for runs in board(page).values() for run in runs} == ids, "all runs on other cards", 60)
    assert not board(page).get(-victim)
    moved = page.locator(f'.chip[data-run="{lost[0]}"] .again')
    wait_until(lambda: moved.text_content() == "×2", "the second attempt", 60)
    stage.open_gate("all")
    for handle in handles:
        handle.wait(60)

    go(page, f"#/runs/{lost[0]}")
    page.get_by_text("lost: its process died").wait_for()
    story = page.locator(".story").inner_text()
    assert "attempt 1" in story
    assert "attempt 2" in story
    assert "completed" in story
    entry = client.handle(lost[0]).view().story[0]
    assert entry.worker in story
    assert entry.code in story


def test_roll_is_seen_on_the_board(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.coordinator()
    stage.fleet(2)
    page = open_page()
    handles = client.enqueue_many([("steps", {"total": 10_000, "seconds": 0.05, "gate": "all"})] * 6)
    ids = {handle.id for handle in handles}
    before = wait_for_chips(page, 2, 6)
    stage.run("workers", "roll")
    wait_until(lambda: not set(before) & set(board(page)), "new processes", 60)
    wait_until(lambda: {run for runs in board(page).values() for run in runs} == ids, "all runs on new cards", 60)
    go(page, "#/fleets")
    page.get_by_text("2 of 2 replaced").wait_for()
    stage.open_gate("all")
    for handle in handles:
        assert handle.wait(60) is Status.COMPLETED


def test_page_survives_restarts_of_the_store_and_of_the_web_server(
    start_server: StartServer, make_stage: MakeStage, browser: Any
) -> None:
    server: Server = start_server()
    stage = make_stage(server.url)
    process, address = start_web(stage, "--timeout", "1")
    page = browser.new_page()
    try:
        page.goto(address)
        state = page.locator("#connection")
        wait_until(lambda: state.inner_text() == "live", "the first board", 60)
        server.kill()
        wait_until(lambda: state.inner_text() == "server lost", "the outage", 60)
        server.restart()
        wait_until(lambda: state.inner_text() == "live", "the server's return", 60)
        with Client(server.url, stage.namespace) as client:
            run = client.enqueue("nobody")
        page.locator(f'#events a[title="{run.id}"]').wait_for(timeout=60_000)
        port = int(address.rpartition(":")[2].strip("/"))
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        wait_until(lambda: state.inner_text() == "reconnecting", "the end of the stream", 60)
        start_web(stage, port=port)
        wait_until(lambda: state.inner_text() == "live", "the web server's return", 60)
    finally:
        page.close()


def test_reader_has_no_buttons_and_the_server_refuses_its_changes(client: Client, open_page: OpenPage) -> None:
    run = client.enqueue("nobody")
    page = open_page()
    go(page, f"#/runs/{run.id}")
    page.locator("h1").wait_for()
    assert page.get_by_role("button", name="Cancel…").count() == 0
    status = page.evaluate(
        """async id => {
            const session = await (await fetch('data/session')).json();
            const answer = await fetch('data/changes', {method: 'POST', body: JSON.stringify({action: 'cancel', ids: [id]}),
                headers: {'content-type': 'application/json', 'x-csrf-token': session.csrf}});
            return [session.role, answer.status];
        }""",
        run.id,
    )
    assert status == ["read", 403]
    assert run.view().status is Status.QUEUED


def test_empty_namespace_says_how_to_begin(open_page: OpenPage) -> None:
    page = open_page()
    for text in (
        "No worker is running",
        "There are no runs yet",
        "Changes of runs appear here",
        "no coordinator is running",
    ):
        page.get_by_text(text).wait_for(timeout=60_000)
    go(page, "#/schedules")
    page.get_by_text("There are no schedules").wait_for()


def test_time_of_a_delayed_run_is_shown_like_other_times(client: Client, open_page: OpenPage) -> None:
    run = client.enqueue("nobody", delay=3600)
    assert "T" in run.view().why
    page = open_page()
    for path in (f"#/runs/{run.id}", "#/runs?status=delayed"):
        go(page, path)
        shown = page.get_by_text("delayed until").first
        shown.wait_for()
        assert re.fullmatch(r"delayed until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d.*", shown.inner_text())


def test_changes_are_made_with_a_dialog(client: Client, open_page: OpenPage) -> None:
    run = client.enqueue("nobody")
    page = open_page("--allow-changes")
    go(page, f"#/runs/{run.id}")
    page.get_by_role("button", name="Send a signal…").click()
    page.locator("dialog input[name=topic]").fill("approval")
    page.locator("dialog textarea").fill('{"ok": true}')
    page.locator("#confirm").click()
    page.get_by_text("Signal sent.").wait_for()
    assert run.view().signals == {"approval": 1}
    page.get_by_role("button", name="Cancel…").click()
    page.locator("#confirm").click()
    wait_until(lambda: run.view().status is Status.CANCELLED, "the cancel")
    page.get_by_role("button", name="Revive…").click()
    page.locator("dialog button[value=no]").click()
    assert run.view().status is Status.CANCELLED


def test_many_runs_are_counted_before_they_are_cancelled(client: Client, open_page: OpenPage) -> None:
    client.enqueue_many([("nobody", {})] * 120)
    page = open_page("--allow-changes")
    go(page, "#/runs?status=queued&kind=nobody")
    wait_until(lambda: page.locator("tbody tr.row").count() == 50, "the first page")
    page.locator("#more").click()
    wait_until(lambda: page.locator("tbody tr.row").count() == 100, "the second page")
    page.get_by_role("button", name="Cancel all matching…").click()
    page.get_by_text("Cancel 120 runs?").wait_for()
    assert client.status().counts[Status.QUEUED] == 120
    page.locator("#confirm").click()
    wait_until(lambda: client.status().counts[Status.CANCELLED] == 120, "the cancel of all")


OTHER_SITE = """async ([address, run]) => {
  const read = async (path) => { try { return await (await fetch(address + path)).text(); } catch (error) { return error.name; } };
  const send = (path, body, type) => fetch(address + path, {method: 'POST', mode: 'no-cors', credentials: 'include', body,
    headers: {'content-type': type}}).then(() => 'sent', (error) => error.name);
  const cancel = JSON.stringify({action: 'cancel', ids: [run]});
  for (const type of ['text/plain', 'application/x-www-form-urlencoded']) {
    await send('data/changes', cancel, type);
    await send(`api/runs/${run}/cancel`, '{}', type);
    await send('api/runs', JSON.stringify({kind: 'planted', inputs: {}}), type);
  }
  const frame = document.createElement('iframe');
  frame.name = 'frame';
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, {method: 'POST', enctype: 'text/plain', action: `${address}api/runs/${run}/cancel`, target: 'frame'});
  document.body.append(form);
  const loaded = new Promise((resolve) => { frame.onload = resolve; });
  form.submit();
  await loaded;
  const live = await new Promise((resolve) => {
    const source = new EventSource(address + 'data/live');
    source.onerror = () => resolve('refused');
    source.addEventListener('board', () => resolve('read'));
  });
  return [await read('data/runs'), await read('api/runs'), live];
}"""


def test_page_of_another_site_can_neither_read_nor_change(client: Client, open_page: OpenPage) -> None:
    run = client.enqueue("nobody")
    page = open_page("--allow-changes")
    page.locator("#connection", has_text="live").wait_for(timeout=60_000)
    with HTTPServer(("127.0.0.1", 0), OtherSite) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        stranger = page.context.new_page()  # the same browser, with the cookie of the page
        stranger.goto(f"http://localhost:{other.server_port}/")
        assert stranger.evaluate(OTHER_SITE, [page.address, run.id]) == ["TypeError", "TypeError", "refused"]
        other.shutdown()
    assert [view.id for view in client.list()] == [run.id]
    assert run.view().status is Status.QUEUED


class OtherSite(BaseHTTPRequestHandler):
    """A site that answers each request with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>other</title><body></body>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def plant_scripts(stage: Stage, client: Client) -> list[str]:
    """Store a script in every field that a producer or a handler controls, and return the ids of the runs."""
    hostile = client.enqueue(
        "hostile",
        {"text": SCRIPT, "more": {SCRIPT: {"deep": [SCRIPT]}}},
        key=SCRIPT,
        meta={SCRIPT: SCRIPT, "tenant": SCRIPT},
        group=SCRIPT,
    )
    assert hostile.wait(60) is Status.FAILED
    returned = client.enqueue("returns", {"text": SCRIPT})
    assert returned.wait(60) is Status.COMPLETED
    client.schedule("hostile", "0 3 * * *", "returns", {"text": SCRIPT}, meta={"x": SCRIPT})
    client.set_limit("nobody", at_once=0)
    held = client.enqueue("nobody", group=SCRIPT)  # the overview names its group
    held.send("topic", {SCRIPT: SCRIPT})
    for give in (
        lambda: held.send(SCRIPT),
        lambda: client.enqueue(SCRIPT),
        lambda: client.enqueue("returns", queue=SCRIPT),
        lambda: client.schedule(SCRIPT, "0 3 * * *", "returns"),
        lambda: client.set_limit(SCRIPT, at_once=1),
        lambda: client.set_rate(SCRIPT, "10/s"),
    ):
        with pytest.raises(BadName):  # a name has letters, digits, dots, dashes and underscores only
            give()
    # A producer that does not use the client can store any route.
    space: Namespace = client._do(lambda namespace: namespace.space())
    raw = RunIds().make(client._clock.now(), 0)
    wire = Wire(client._settings.address, 10)
    try:
        new = client_plans.NewRun(
            raw, f"{SCRIPT.replace(':', '')}:{SCRIPT.replace('@', '')}@0", encode([{}, {}, {}], "spec")
        )
        drive(wire, client_plans.enqueue(space, [new]))
    finally:
        wire.close()
    plant_raw_names(stage, client, held.id)
    return [hostile.id, returned.id, raw, held.id]


def plant_raw_names(stage: Stage, client: Client, run: str) -> None:
    """Store a script as the name of a schedule, a limit, a rate, a topic and a fleet: with commands that no script checks."""
    space: Namespace = client._do(lambda namespace: namespace.space())
    (keys,) = space.everywhere()
    (worker,) = client.workers()
    client.set_rate("search", "10/s")
    with redis.Redis.from_url(stage.url) as line:
        line.hset(keys.rates(), SCRIPT, line.hget(keys.rates(), "search"))
        line.hset(keys.limits(), f"kind:{SCRIPT}", "1")
        line.hset(keys.limits(), f"group:nobody:{SCRIPT}", "0")
        line.hset(keys.worker(worker.id), "fleet", SCRIPT)
        line.hset(keys.signals(run), mapping={f"first:{SCRIPT}": 1, f"last:{SCRIPT}": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coordinator.client.schedules.name", lambda text, *_: text)
        client.schedule(SCRIPT, "0 4 * * *", "returns")
    assert [one.fleet for one in client.workers()] == [SCRIPT]
    assert SCRIPT in client.handle(run).view().signals
    assert SCRIPT in [rate.name for rate in client.rates()]
    assert SCRIPT in [limit.kind for limit in client.limits()]


def test_stored_scripts_are_shown_as_text_on_every_page(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.app = "tests.e2e.hostile_app:runs"
    stage.coordinator()
    stage.fleet(1)
    page = open_page("--allow-changes")
    blocked: list[str] = []
    page.on(
        "console", lambda message: blocked.append(message.text) if "Content Security Policy" in message.text else None
    )
    hostile, returned, raw, held = plant_scripts(stage, client)
    pages = ["#/", "#/runs", "#/runs?status=failed", "#/runs?status=queued", f"#/runs/{hostile}", f"#/runs/{returned}",
             f"#/runs/{raw}", f"#/runs/{held}",
             "#/schedules", "#/fleets", f"#/runs?status=failed&key={SCRIPT}", f"#/runs/{SCRIPT}"]  # fmt: skip
    for path in pages:
        show(page, path)
        page.locator("main > *").first.wait_for()
        page.wait_for_load_state("networkidle") if path.startswith("#/runs?") else page.locator(
            "h1, .stats"
        ).first.wait_for()
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert page.evaluate("window.hacked") is None, path
        assert page.locator("main img, main script, main iframe").count() == 0, path
    raw_names = {f"#/runs/{held}": "Facts", "#/": "External calls", "#/schedules": "All schedules", "#/fleets": SCRIPT}
    for path, label in raw_names.items():
        go(page, path)
        part = page.get_by_label(label, exact=True)
        wait_until(lambda part=part: SCRIPT in part.first.inner_text(), f"the name on {path}", 60)  # type: ignore[misc]
    go(page, f"#/runs/{hostile}")
    page.get_by_text("Traceback").wait_for()
    wait_until(lambda: page.locator("#output > *").count() == 3, "the output")
    shown = page.locator("main").inner_text()
    # Inputs, key, group, meta, note, error, state, phase, effect, output, and the transcript.
    for label in ("Inputs", "Facts", "Error", "State", "Phases", "Effects", "Output of the run", "Transcript", "Story"):
        assert "onerror=" in page.get_by_label(label, exact=True).first.text_content(), label
    assert shown.count("onerror=") >= 12
    assert blocked == []


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the source of axe-core, which a package of the tests brings along."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


def serious(page: Page, axe: str) -> list[Any]:
    """Return the serious findings of axe-core about the page as it is shown now."""
    page.evaluate(axe)
    found = json.loads(page.evaluate("async () => JSON.stringify((await axe.run()).violations)"))
    return [
        (one["id"], [node["target"] for node in one["nodes"]][:3])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_axe_finds_nothing_serious(
    stage: Stage, client: Client, open_page: OpenPage, axe: str, theme: str, width: int
) -> None:
    stage.app = "tests.e2e.hostile_app:runs"
    stage.coordinator()
    stage.fleet(1)
    run = client.enqueue("hostile", {"text": "x"})
    run.wait(60)
    queued = client.enqueue("nobody", group="acme")
    client.set_rate("search", "10/s")
    client.schedule("nightly", "0 3 * * *", "returns")
    page = open_page("--allow-changes")
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": 900})
    for path in ("#/", "#/runs", "#/runs?status=dead", f"#/runs/{run.id}", "#/runs/nothing", "#/schedules", "#/fleets"):
        show(page, path)
        page.wait_for_load_state("load")
        page.locator("h1").first.wait_for(state="attached")
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert serious(page, axe) == [], (path, theme, width)
    show(page, "#/schedules")
    page.get_by_label("Fire times of nightly").click()
    page.locator("tr.detail").wait_for()
    assert serious(page, axe) == [], ("fire times", theme, width)
    show(page, "#/runs?status=queued")
    page.get_by_label(f"Select run {queued.id}").click()
    assert serious(page, axe) == [], ("selection", theme, width)
    page.get_by_role("button", name="Cancel all matching…").click()
    page.locator("#confirm").wait_for()
    assert serious(page, axe) == [], ("dialog of a change", theme, width)
    show(page, f"#/runs/{queued.id}")
    page.get_by_role("button", name="Send a signal…").click()
    assert serious(page, axe) == [], ("dialog of a signal", theme, width)


def test_axe_finds_a_fault(open_page: OpenPage, axe: str) -> None:
    page = open_page()
    show(page, "#/")
    page.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert [name for name, _ in serious(page, axe)] == ["button-name"]


def test_address_that_is_not_well_formed_shows_a_page(open_page: OpenPage) -> None:
    page = open_page()
    go(page, "#/runs/%")
    page.get_by_text("there is no run").or_(page.get_by_text("not a run id")).or_(
        page.locator(".empty")
    ).first.wait_for()


def test_page_fits_a_phone_and_is_used_with_the_keyboard(client: Client, open_page: OpenPage) -> None:
    run = client.enqueue("nobody", {"text": "x" * 500})
    page = open_page()
    page.set_viewport_size({"width": 360, "height": 740})
    for path in ("#/", "#/runs?status=queued", f"#/runs/{run.id}", "#/schedules", "#/fleets"):
        go(page, path)
        page.locator("main > *").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    page.set_viewport_size({"width": 1280, "height": 900})
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.locator(f'a[href="#/runs/{run.id}"]').wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="nobody").wait_for()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find-id"


def test_keys_change_the_theme_move_through_rows_select_them_and_show_help(client: Client, open_page: OpenPage) -> None:
    older, newer = client.enqueue("nobody"), client.enqueue("nobody")
    page = open_page("--allow-changes")
    page.emulate_media(color_scheme="light")
    go(page, "#/runs")
    wait_until(lambda: page.locator("tbody tr.row").count() == 2, "the runs")
    theme = "document.documentElement.dataset.theme"
    first = page.evaluate(theme)
    page.keyboard.press("t")
    assert page.evaluate(theme) == {"light": "dark", "dark": "light"}[first]
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(theme) == first
    page.get_by_role("button", name="Switch between light and dark").click()
    chosen = page.evaluate(theme)
    page.reload()
    wait_until(lambda: page.locator("tbody tr.row").count() == 2, "the runs after a reload")
    assert page.evaluate(theme) == chosen != first
    focused = "document.activeElement.textContent"
    rows = page.locator("tbody tr.row a").all_inner_texts()
    assert set(rows) == {older.id, newer.id}
    for key, row in (("j", 0), ("j", 1), ("j", 1), ("k", 0)):
        page.keyboard.press(key)
        assert page.evaluate(focused) == rows[row], key
    page.keyboard.press("x")
    assert page.get_by_label(f"Select run {rows[0]}").is_checked()
    page.get_by_text("1 run selected").wait_for()
    page.get_by_text(rows[0]).focus()
    page.keyboard.press("x")
    assert not page.get_by_label(f"Select run {rows[0]}").is_checked()
    page.keyboard.press("?")
    help = page.get_by_role("dialog", name="Keyboard")
    help.wait_for()
    for text in ("g o", "g f", "Open a run by its id", "Light or dark"):
        assert text in help.inner_text()
    page.keyboard.press("t")
    assert page.evaluate(theme) == chosen, "keys do nothing while a dialog is open"
    page.keyboard.press("Escape")
    wait_until(lambda: help.count() == 0, "the end of the help")


def test_doctor_is_asked_on_the_page_of_fleets(stage: Stage, client: Client, open_page: OpenPage) -> None:
    healthy = client.enqueue("nobody")
    page = open_page()
    go(page, "#/fleets")
    doctor = page.get_by_label("Doctor")
    assert "only reads" in doctor.inner_text()
    doctor.get_by_role("button", name="Examine now").click()
    doctor.get_by_text("No problems in 1 run").wait_for(timeout=60_000)
    space: Namespace = client._do(lambda namespace: namespace.space())
    (keys,) = space.everywhere()
    with redis.Redis.from_url(stage.url) as line:  # a queued run that is in no collection
        line.zrem(keys.ready("default:nobody@0"), healthy.id)
    other = open_page()  # a new web server, which has no report yet
    go(other, "#/fleets")
    other.get_by_role("button", name="Examine now").click()
    other.get_by_text("1 problem: ").wait_for(timeout=60_000)
    assert healthy.id in other.get_by_label("Doctor").inner_text()


def test_roll_that_is_under_way_is_seen_until_it_is_finished(stage: Stage, client: Client, open_page: OpenPage) -> None:
    stage.coordinator()
    fleet = stage.fleet(1)
    (old,) = wait_until(client.workers, "the worker", 60)
    page = open_page()
    go(page, "#/fleets")
    page.get_by_text(f":{old.pid}").wait_for(timeout=60_000)
    os.kill(fleet.pid, signal.SIGSTOP)  # the supervisor does not take part yet
    try:
        stage._start("workers", "roll")
        page.get_by_text("Roll in progress").wait_for(timeout=60_000)
        assert page.get_by_text("Last roll").count() == 0
        assert [one.pid for one in client.workers()] == [old.pid]
    finally:
        os.kill(fleet.pid, signal.SIGCONT)
    page.get_by_text("Last roll").wait_for(timeout=60_000)
    page.get_by_text("1 of 1 replaced").wait_for(timeout=60_000)
