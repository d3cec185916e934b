"""Call an escalator: the user's function that decides about a run at its soft deadline."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from typing import Any

from coordinator.model.policies.deadline import Escalator, Extend, Kill, Leave, Verdict, Watched


async def ask_escalator(escalator: Escalator, run: Watched) -> Verdict | BaseException:
    """Return the verdict of an escalator, or the error that it raised.

    Every exception is caught: a SystemExit, for example, would otherwise end the event loop.
    """
    try:
        answer: Any = escalator(run) if inspect.iscoroutinefunction(escalator) else await _in_a_thread(escalator, run)
        if inspect.isawaitable(answer):
            answer = await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return error
    except BaseException as error:  # noqa: BLE001  # a user's function may raise anything
        return error
    if isinstance(answer, Extend | Kill | Leave):
        return answer
    return TypeError(f"an escalator must return Extend(seconds), Kill(reason) or Leave(), not {answer!r:.200}")


async def _in_a_thread(escalator: Escalator, run: Watched) -> Any:
    """Call a plain escalator in a thread of its own, and return its answer or raise its error.

    The threads of the handlers may all be busy, and an escalator that hangs must neither take a slot nor keep the process alive.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((answer, error))

    def call() -> None:
        answer, error = None, None
        try:
            answer = escalator(run)
        except BaseException as raised:  # noqa: BLE001  # raised again on the event loop
            error = raised
        with contextlib.suppress(RuntimeError):  # the event loop is closed, so no task waits for the answer
            loop.call_soon_threadsafe(settle, answer, error)

    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(call), name="escalator", daemon=True).start()
    answer, error = await done
    if error is not None:
        raise error
    return answer
