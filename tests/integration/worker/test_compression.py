"""Compressed runs on real servers: fewer bytes, mixed fleets, crash and resume."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator import Client, KeyConflict, Status
from coordinator.encoding import seal
from coordinator.encoding.checkpoint_head import CheckpointHead
from coordinator.encoding.codec import encode
from tests.e2e.processes import Stage, children, kept_open
from tests.integration.worker_harness import Bench, bench, performing
from tests.servers import Server
from tests.waiting import eventually, wait_until, work_for
from workers import AsyncRun, Registry

LARGE = "the same words again and again; " * 6400  # 200 kB
ON, OFF = ("zstd",), ()
Use = Callable[..., None]

runs = Registry()  # The processes of the last test use this.


@runs.handler(throttle=0)
async def talk(run: AsyncRun, text: str) -> dict[str, Any]:
    """Do three turns of many small messages. The first attempt stays in its third turn."""
    async for turn in run.loop(limit=3):
        if turn == 2 and run.attempt == 1:
            await work_for(3600)
        run.messages.extend({"role": "user", "content": f"turn {turn}: question {n}"} for n in range(100))
        run.state["text"] = f"{turn} {text}"
        await run.flush()
    return {
        "messages": len(run.messages),
        "first": run.messages[0],
        "last": run.messages[-1],
        "state": run.state["text"],
    }


EXPECTED = {
    "messages": 300,
    "first": {"role": "user", "content": "turn 0: question 0"},
    "last": {"role": "user", "content": "turn 2: question 99"},
    "state": f"2 {LARGE}",
}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Set the codecs of this process, and restore them after the test."""
    monkeypatch.setattr(seal, "_writers", ())
    return seal.use


@pytest.fixture
async def here(real_server: Server, namespace: str) -> AsyncIterator[Bench]:
    async with bench(real_server.url, namespace) as made:
        yield made


def stored(here: Bench, id: str) -> dict[str, bytes]:
    """Return all data of a run as it is stored on the server."""
    keys = here.namespace.keys_of(id)
    run = {name: data for name, data in here.run(id).items() if name in ("spec", "result", "error")}
    fields = {name.decode(): data for name, data in here.admin.hgetall(keys.ckpt(id)).items() if name != b"head"}
    return (
        run
        | fields
        | {f"messages {name.decode()}": d for name, d in here.admin.hgetall(keys.messages(id, "1")).items()}
    )


def iteration(here: Bench, id: str) -> int:
    head = here.admin.hget(here.namespace.keys_of(id).ckpt(id), "head")
    return CheckpointHead.parse(head).iteration if head else 0


def compressed(here: Bench, id: str) -> set[str]:
    return {name for name, data in stored(here, id).items() if data[:1] == seal.MARK}


def enqueue(here: Bench, **options: Any) -> str:
    with Client(here.url, here.namespace.name) as client:
        return client.enqueue("talk", {"text": LARGE}, **options).id


@pytest.mark.parametrize(("first", "second"), [(ON, ON), (ON, OFF), (OFF, ON)], ids=["both", "first", "second"])
async def test_transcript_continues_after_a_crash_with_any_mix_of_codecs(here, use, first, second):
    use(*first)
    id = await asyncio.to_thread(enqueue, here)
    worker, _ = here.worker(runs)
    await performing(worker)
    saved = {"spec", "state", "messages 0", "messages 100"}
    await eventually(lambda: iteration(here, id) == 2, "two turns to be saved")
    assert stored(here, id).keys() == saved
    assert compressed(here, id) == (saved if first else set())
    use(*second)
    assert (await here.abandon(worker)).taken == 1
    assert await here.outcome(id) == "completed"
    assert here.counters(id).attempt == 2
    assert here.result(id) == EXPECTED
    assert ("result" in compressed(here, id)) == bool(second)


async def test_next_attempt_reads_compressed_parts_of_a_release(here, use):
    handlers, seen = Registry(), []

    @handlers.handler(throttle=3600)
    async def work(run: AsyncRun) -> str:
        if run.resumed:
            seen.append((len(run.messages), len(run.resumed.unfinished), await run.phase("large", lambda: "")))
            return "done"
        await run.phase("large", lambda: LARGE)
        run.messages.extend({"n": n, "text": "some words"} for n in range(300))
        run.checkpoint()
        run.messages.extend({"n": n, "text": "other words"} for n in range(200))
        await work_for(3600)
        return "not reached"

    use("zstd")
    worker, task = here.worker(handlers, grace=0.2)
    id = await here.enqueue("work")
    await eventually(lambda: len(worker.attempts) and next(iter(worker.attempts.values())).draft is not None, "a draft")
    draft = next(iter(worker.attempts.values())).draft
    await eventually(lambda: draft is not None and len(draft.messages) == 500, "the handler's messages")
    await here.end(worker, task)
    assert {name.partition(":")[0] for name in compressed(here, id)} == {"phase", "messages 0", "unfinished"}
    use()
    here.worker(handlers)
    assert await here.outcome(id) == "completed"
    assert seen == [(300, 200, LARGE)]


async def test_compressed_errors_are_shown(here, use):
    handlers = Registry()

    @handlers.handler
    async def breaks(run: AsyncRun) -> None:
        raise ValueError(LARGE)

    use("zstd")
    here.worker(handlers)
    id = await here.enqueue("breaks")
    assert await here.outcome(id) == "failed"
    assert "error" in compressed(here, id)
    with Client(here.url, here.namespace.name) as client:
        failure = client.handle(id).view().error
    assert failure is not None
    assert (failure.type, failure.message) == ("ValueError", LARGE[:10_000])


async def test_producers_with_and_without_compression_agree_on_a_key(here, use):
    use("zstd")
    first = await asyncio.to_thread(enqueue, here, key="once")
    assert compressed(here, first) == {"spec"}
    use()
    assert await asyncio.to_thread(enqueue, here, key="once") == first
    with Client(here.url, here.namespace.name) as client:
        assert client.handle(first).view().inputs == {"text": LARGE}
        with pytest.raises(KeyConflict):
            client.enqueue("talk", {"text": "another"}, key="once")


async def test_unchanged_state_is_not_sent_again(here, use):
    handlers, over = Registry(), asyncio.Event()

    @handlers.handler(throttle=0)
    async def still(run: AsyncRun) -> int:
        run.state["text"] = LARGE
        await run.flush()
        before = received(here)
        for _ in range(20):
            await run.flush()
        over.set()
        return received(here) - before

    use("zstd")
    here.worker(handlers)
    id = await here.enqueue("still")
    await over.wait()  # Polling for the status sends bytes, too.
    assert await here.outcome(id) == "completed"
    assert here.result(id) < 20 * 1000


def received(here: Bench) -> int:
    return int(here.admin.info("stats")["total_net_input_bytes"])


async def sent(here: Bench) -> int:
    """Return the bytes that the server receives for a run with a state of 200 kB that changes ten times."""
    handlers, over = Registry(), asyncio.Event()

    @handlers.handler(throttle=0)
    async def grows(run: AsyncRun) -> None:
        for n in range(10):
            run.state["text"] = f"{n} {LARGE}"
            await run.flush()
        over.set()

    worker, task = here.worker(handlers)
    before = received(here)
    id = await here.enqueue("grows")
    await over.wait()
    after = received(here)
    assert await here.outcome(id) == "completed"
    await here.end(worker, task)
    return after - before


async def test_repetitive_state_is_sent_in_a_fraction_of_its_bytes(here, use):
    use()
    plainly = await sent(here)
    use("zstd")
    small = await sent(here)
    print(
        f"sent for a state of {len(encode(LARGE, 'state')):,} bytes, saved ten times: {plainly:,} and compressed {small:,}"
    )
    assert plainly > 10 * len(LARGE)
    assert small < plainly / 20


@pytest.mark.matrix("waits through a timeout")
def test_process_without_compression_continues_runs_of_killed_compressing_processes(
    valkey_server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{__name__}:runs"
    with kept_open(Stage(valkey_server.url, namespace, tmp_path)) as stage, Client(stage.url, namespace) as client:
        monkeypatch.setenv("RUNS_COMPRESS", "zstd")
        stage.coordinator()
        first = stage._start("workers", "start", place, "--lease", "3")
        handle = client.enqueue("talk", {"text": LARGE})
        wait_until(lambda: handle.view().iteration == 2, "two turns to be saved")
        [messages] = valkey_server.admin.scan_iter(f"*:messages:{handle.id}:1")
        found = {data[:1] for data in valkey_server.admin.hvals(messages)}
        assert found == {seal.MARK}, "the setting has reached the supervisor's child"
        for pid in (first.pid, *children(first.pid)):
            os.kill(pid, signal.SIGKILL)
        monkeypatch.delenv("RUNS_COMPRESS")
        stage._start("workers", "start", place, "--lease", "3")
        assert handle.wait(60) is Status.COMPLETED
        assert handle.result() == EXPECTED
