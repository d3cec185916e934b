"""An agent that types. Its text survives the death of its worker: try kill -9 on the worker process while it types.

The model is scripted, so the example needs no network: replace it with yours.

workers start streaming:runs --processes 2
python streaming.py "a tide that was late"

The second command enqueues a run, and shows its tokens as they come. When the worker dies, the reader takes back the words that
were lost, and continues with the words of the next attempt.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from coordinator import Client, Event, Gap, Rewind
from workers import AsyncRun, Registry

PARTS = 3
runs = Registry()


@runs.handler(keep_messages=True)
async def tell(run: AsyncRun, topic: str) -> str:
    """Tell a story in parts. The end of each turn is a cut: a resumed run repeats at most the part that was interrupted."""
    async for part in run.loop(limit=PARTS):
        text = ""
        async for token in answer_of_model(topic, part):
            run.emit({"delta": token})
            text += token
        run.messages.append({"role": "assistant", "content": text})
    return "".join(message["content"] for message in run.messages)


async def answer_of_model(topic: str, part: int) -> AsyncIterator[str]:
    beginning = ("Once there was", "Nobody had expected", "In the end everybody loved")[part % 3]
    for word in f"{beginning} {topic}.".split(" "):
        await asyncio.sleep(0.2)
        yield word + " "


def main(topic: str) -> None:
    """Enqueue a run, and show its text as it is typed."""
    shown: list[Event] = []
    with Client() as client:
        handle = client.enqueue(tell.inputs(topic))
        for item in handle.stream():
            match item:
                case Event():
                    shown.append(item)
                case Rewind():
                    shown = [event for event in shown if event.number <= item.to]
                case Gap():
                    print(f"\n({item.count} events are missing)")
            print("\r\033[K" + "".join(event.value["delta"] for event in shown)[-200:], end="", flush=True)
        print("\n" + handle.result())


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "a tide that was late")
