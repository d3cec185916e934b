"""A program of the lab that executes its runs itself and keeps their checkpoints with `workers.durable`.

    python -m tests.faults.programs.record_keeper SEED

Three threads act as three owners. Like a restarted program, each takes over the interrupted records of the others,
continues them, starts and finishes some, and leaves the rest. Some stand still for longer than their lease and then
continue as if nothing had happened. The content of a record follows from its id, so that any loss is visible.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
import threading
from types import SimpleNamespace
from typing import Any

from coordinator import CoordinatorError
from tests.e2e.app import journal
from tests.faults.programs.app import message
from workers.durable import Checkpoint, Fenced, Meta, RedisStore

LEASE = 1.0
REST = 0.05
_NUMBERS = itertools.count()


def work(seed: int, stopped: threading.Event) -> None:
    choose = random.Random(seed)
    while not stopped.is_set():
        with RedisStore(lease=LEASE, timeout=5.0) as store:
            _one_life(store, choose, stopped)


def _one_life(store: RedisStore, choose: random.Random, stopped: threading.Event) -> None:
    held: dict[str, list[Any]] = {}
    with contextlib.suppress(CoordinatorError):
        for left in store.claim_interrupted():
            held[left.meta.run_id] = whole(left)
    still = choose.randrange(40)  # In some lives, the owner stands still before this turn.
    for turn in range(choose.randint(5, 25)):
        if turn == still:
            store._current().stop()  # As in a stopped process: the lease is not renewed, and the program does not know.
            stopped.wait(2 * LEASE)
        if stopped.wait(REST):
            return
        if len(held) < 4:
            held[f"diary-{os.getpid()}-{next(_NUMBERS)}"] = []
        id = choose.choice(list(held))
        try:
            _turn(store, id, held, choose.random())
        except Fenced:  # Another owner has the record.
            held.pop(id, None)
        except CoordinatorError:
            continue


def _turn(store: RedisStore, id: str, held: dict[str, list[Any]], way: float) -> None:
    """Continue a run by one turn and save it, or load it, or delete it."""
    if way < 0.7:
        held[id].append(message(id, len(held[id])))
        store.save(Checkpoint(Meta(run_id=id), held[id], len(held[id])))
    elif way < 0.85:
        if there := store.load(id):
            whole(there)
    else:
        del held[id]
        store.delete(id)


def whole(found: Checkpoint) -> list[Any]:
    """Return the messages of a checkpoint, and write to the journal if they are not as written."""
    messages = [dict(kept) for kept in found.messages]
    id = found.meta.run_id
    if found.iteration != len(messages) or messages != [message(id, turn) for turn in range(len(messages))]:
        journal(SimpleNamespace(id=id, token=f"0-{os.getpid()}"), "damaged", len(messages))  # type: ignore[arg-type]
    return messages


def main() -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    seed = int(sys.argv[1])
    threads = [threading.Thread(target=work, args=(seed + number, stopped)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
