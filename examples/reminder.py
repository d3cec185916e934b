"""A reminder that sleeps for a week, and then sends a mail on up to three days, until a person says that it is done.

workers start reminder:runs
coordinator enqueue remind text="Water the plants"
coordinator send RUN done
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from workers import Registry, Run


class Mailer:
    """A stand-in for a mail service, which only records the mails. Replace it with your own."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, text: str) -> None:
        self.sent.append(text)


@asynccontextmanager
async def open_mailer() -> AsyncGenerator[Mailer, None]:
    yield Mailer()


runs = Registry(lifespan=open_mailer)


@runs.handler
def remind(run: Run[Mailer], text: str) -> str:
    run.sleep(timedelta(weeks=1))
    for _ in range(3):
        run.phase("mail", run.resources.send, text)
        if run.receive("done", timeout=timedelta(days=1), default=None):
            return "done"
    return "nobody has answered"
