"""Charge a card once, whatever happens to the worker. The bank is a stand-in, so the example needs no network.

workers start charge:runs
coordinator enqueue order number=1001 cents:=4200
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from workers import AsyncRun, NotDone, Registry, Retry


class Bank:
    """A stand-in for a bank. It recognises a repeated charge by its key, and can tell whether a charge was made."""

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}
        self.mails: list[str] = []

    async def charge(self, key: str, cents: int) -> dict[str, Any]:
        return self.charges.setdefault(key, {"id": f"ch-{len(self.charges) + 1}", "cents": cents})

    async def find(self, key: str, cents: int) -> dict[str, Any] | type[NotDone]:
        return self.charges.get(key, NotDone)

    async def mail(self, text: str) -> None:
        self.mails.append(text)


@asynccontextmanager
async def open_bank() -> AsyncGenerator[Bank, None]:
    yield Bank()


runs = Registry(lifespan=open_bank)


@runs.handler(retry=Retry(limit=3))
async def order(run: AsyncRun[Bank], number: str, cents: int) -> str:
    bank, key = run.resources, run.effect_key("charge")
    receipt = await run.once("charge", bank.charge, key, cents, check=bank.find)
    await run.once("mail", bank.mail, f"order {number}: {receipt['cents'] / 100:.2f} were charged")
    return str(receipt["id"])
