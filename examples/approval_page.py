"""A page that shows the runs of examples/approval.py that wait for a person, and sends the answer as a signal.

pip install fastapi uvicorn
uvicorn approval_page:page

A real page must know who the person is. This page has no login.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import escape
from typing import Literal

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse

from coordinator import AsyncClient, Ended, NotFound, RunView


@asynccontextmanager
async def open_client(app: FastAPI) -> AsyncGenerator[None, None]:
    async with AsyncClient() as app.state.client:
        yield


page = FastAPI(lifespan=open_client)


@page.get("/", response_class=HTMLResponse)
async def show_waiting_runs() -> str:
    views = await page.state.client.list(status="waiting", kind="purchase")
    return f"<h1>Waiting for you</h1>{''.join(map(as_form, views)) or '<p>Nothing.</p>'}"


@page.post("/runs/{id}/{topic}/{answer}")
async def send_answer(id: str, topic: str, answer: Literal["yes", "no"]) -> RedirectResponse:
    payload = {"granted": answer == "yes", "by": "the person at the page"}
    try:
        await page.state.client.handle(id).send(topic, payload, key=topic)  # the key: a second click sends nothing
    except NotFound as error:
        raise HTTPException(404, "There is no such run.") from error
    except Ended as error:
        raise HTTPException(409, "The run has ended: it no longer waits for an answer.") from error
    return RedirectResponse("/", status_code=303)


def as_form(view: RunView) -> str:
    question = escape(view.note.text) if view.note else f"run {view.id}"
    topics = view.waiting.topics if view.waiting else ()
    buttons = "".join(
        f'<button formaction="/runs/{view.id}/{topic}/{answer}">{answer}</button>'
        for topic in topics
        for answer in ("yes", "no")
    )
    return f'<form method="post"><p>{question} {buttons}</p></form>'
