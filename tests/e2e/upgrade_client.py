"""A client process of the upgrade tests: it makes the calls that a test writes to its standard input.

    python -m tests.e2e.upgrade_client

Each line of the input is a JSON object with a number, the name of an operation below and its arguments. The process answers with a
line that has the same number, and the value or the error. Calls that wait are made at the same time as others. Processes of an old
version import a copy of this module, so it uses only what both versions have, and nothing else of the tests.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coordinator import AsyncClient, Client, Event, Gap, Rewind
from workers.durable import CheckpointerFactory, Meta, RedisStore, recover

AT_ONCE = 1000  # calls that wait at the same time
WAIT = 180.0  # seconds after which a call that waits fails: no run of the tests takes as long


class Clients:
    """The clients of the process: one for threads, one for an event loop that runs in a thread, and a store of records."""

    def __init__(self) -> None:
        self.plain = Client()
        self.records = RedisStore(lease=1.0)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.in_loop: AsyncClient | None = None

    def close(self) -> None:
        self.plain.close()
        self.records.close()
        if self.in_loop is not None:
            asyncio.run_coroutine_threadsafe(self.in_loop.close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)

    async def wait_for_result(self, run: str) -> Any:
        self.in_loop = self.in_loop or AsyncClient()
        return await self.in_loop.handle(run).result(timeout=WAIT)


# ---- operations --------------------------------------------------------------------------------------------------------


def enqueue(clients: Clients, kind: str, inputs: dict[str, Any], **options: Any) -> list[Any]:
    handle = clients.plain.enqueue(kind, inputs, **options)
    return [handle.id, handle.created]


def result(clients: Clients, run: str) -> Any:
    return clients.plain.handle(run).result(timeout=WAIT)


def result_in_loop(clients: Clients, run: str) -> Any:
    return asyncio.run_coroutine_threadsafe(clients.wait_for_result(run), clients.loop).result()


def send(clients: Clients, run: str, topic: str, payload: Any, key: str) -> bool:
    return clients.plain.handle(run).send(topic, payload, key=key)


def grant(clients: Clients, run: str, requests: int) -> None:
    clients.plain.handle(run).grant(requests=requests)


def cancel(clients: Clients, run: str) -> str:
    return str(clients.plain.handle(run).cancel())


def stream(clients: Clients, run: str, settled: bool) -> dict[str, Any]:
    """Return the text that a reader has at the end, the numbers of all events that it got, and how many gaps and rewinds."""
    text: list[Any] = []
    numbers, gaps, rewinds = [], 0, 0
    for item in clients.plain.handle(run).stream(settled=settled, timeout=WAIT):
        match item:
            case Event(number=number, value=value):
                text.append(value)
                numbers.append(number)
            case Rewind(to=to):
                del text[to:]
                rewinds += 1
            case Gap():
                gaps += 1
    return {"text": text, "numbers": numbers, "gaps": gaps, "rewinds": rewinds}


def messages(clients: Clients, run: str) -> list[Any]:
    return list(clients.plain.handle(run).messages())


def view(clients: Clients, run: str) -> dict[str, Any]:
    found = clients.plain.handle(run).view()
    return {"status": str(found.status), "kind": found.kind, "parent": found.parent, "group": found.group}


def list_ids(clients: Clients, kind: str) -> list[str]:
    return [found.id for found in clients.plain.list(kind=kind, limit=10_000)]


def look(clients: Clients) -> dict[str, Any]:
    """Read what a client can read about the whole namespace."""
    client = clients.plain
    client.status()
    return {
        "workers": len(client.workers()),
        "schedules": sorted(one.name for one in client.schedules()),
        "rates": [one.name for one in client.rates()],
        "limits": sorted({one.kind for one in client.limits()}),
    }


def schedule(clients: Clients, name: str, when: str, kind: str) -> None:
    clients.plain.schedule(name, when, kind, overlap="allow", catch_up="all")


def unschedule(clients: Clients, name: str) -> None:
    clients.plain.unschedule(name)


def set_rate(clients: Clients, name: str, rate: str, burst: int, at_once: int) -> None:
    clients.plain.set_rate(name, rate, burst=burst, at_once=at_once)


def save_record(clients: Clients, id: str, turns: int) -> None:
    """Save the record of a run that this program executes itself, once for each turn."""
    checkpointer = CheckpointerFactory(clients.records, throttle=0.0).begin(Meta(run_id=id))
    assert checkpointer is not None
    for turn in range(turns):
        checkpointer.save([{"turn": number} for number in range(turn + 1)], turn + 1)


def continue_records(clients: Clients) -> list[list[Any]]:
    """Claim the records of programs that are gone, and save another turn of each. Return their ids, iterations and messages."""
    found = []
    for run in recover(clients.records, throttle=0.0):
        record = run.checkpoint
        found.append([record.meta.run_id, record.iteration, list(record.messages)])
        run.checkpointer.save([*record.messages, {"turn": record.iteration}], record.iteration + 1)
    return found


OPERATIONS: dict[str, Callable[..., Any]] = {
    operation.__name__: operation
    for operation in (
        enqueue, result, result_in_loop, send, grant, cancel, stream, messages, view, list_ids, look, schedule, unschedule,
        set_rate, save_record, continue_records,
    )
}  # fmt: skip


# ---- the program -------------------------------------------------------------------------------------------------------


def main() -> None:
    clients, writing = Clients(), threading.Lock()

    def answer(number: int, operation: str, arguments: dict[str, Any]) -> None:
        try:
            line = {"number": number, "value": OPERATIONS[operation](clients, **arguments)}
        except Exception as error:  # noqa: BLE001  # the test gets each error as the answer
            line = {"number": number, "error": type(error).__name__, "message": str(error)}
        with writing:
            print(json.dumps(line), flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in sys.stdin:
            call = json.loads(line)
            pool.submit(answer, call["number"], call["operation"], call["arguments"])
    clients.close()


if __name__ == "__main__":
    main()
