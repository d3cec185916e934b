"""Hayhooks: two durable deployments behind its own HTTP routes, in one process with its workers.

    python hayhooks_app.py URL PORT LEASE

Its documented parts are used as they are: DurableDeployment, RedisExecutionStore and create_durable_router, in an application of
FastAPI. The runners are plain coroutines, because a pipeline of Haystack would only add its own time.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from hayhooks.durable import DurableContext, DurableDeployment, DurableRuntime, RuntimeConfig, create_durable_router
from hayhooks.durable.redis import RedisExecutionStore
from marks import mark
from pydantic import BaseModel
from redis.asyncio import Redis


class Work(BaseModel):
    steps: int
    seconds: float
    text: str


async def chat(context: DurableContext, work: Work) -> dict[str, int]:
    """Append a message in each step, and save it."""
    messages = context.state.setdefault("messages", [])
    assert isinstance(messages, list)
    mark("start", context.execution_id, len(messages), context.attempt)
    while len(messages) < work.steps:
        mark("step", context.execution_id, len(messages), context.attempt)
        messages.append({"role": "assistant", "content": work.text})
        await context.checkpoint()
        await asyncio.sleep(work.seconds)
    return {"steps": len(messages)}


async def approval(context: DurableContext, work: Work) -> dict[str, int]:
    """Wait until a client resumes the execution."""
    if context.resume_input is None:
        mark("waits", context.execution_id, 0, context.attempt)
        await context.suspend({"for": "approval"})
    mark("resumed", context.execution_id, 0, context.attempt)
    return {"steps": 0}


def application(url: str, lease: float) -> FastAPI:
    client = Redis.from_url(url)
    config = RuntimeConfig(worker_concurrency=50, lease_duration_ms=round(lease * 1000))
    deployments = [
        DurableDeployment(
            runner.__name__, "1", RedisExecutionStore(client, runner.__name__), Work, runner, config=config
        )
        for runner in (chat, approval)
    ]
    runtime = DurableRuntime(deployments)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        yield
        await runtime.close()

    app = FastAPI(lifespan=lifespan)
    for deployment in deployments:
        app.include_router(create_durable_router(deployment, owner_id_dependency=None), prefix=f"/{deployment.name}")
    return app


if __name__ == "__main__":
    url, port, lease = sys.argv[1:]
    uvicorn.run(application(url, float(lease)), port=int(port), log_level="warning")
