"""Run the operations of an agent framework as phases. Each operation gets a name that is the same in every attempt of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2s
from heapq import heappop, heappush
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from coordinator.errors import BadName, NotPlain, Refused, TooLarge
from coordinator.model.names import name as valid_name
from coordinator.model.policies.budget import BudgetExceeded, UnknownPrice
from workers.handlers.async_run import AsyncRun
from workers.handlers.checkpoint.draft import current_phase
from workers.handlers.current_run import find_current_run
from workers.handlers.operations.prices import ModelName, ModelUsage, price_by_names
from workers.handlers.operations.waits import Signal, in_awaited_task

T = TypeVar("T")

LONGEST_NAME = 200
_AGENT_ADVICE = "limit tokens or requests instead, or install a newer genai-prices"


class _Numbers:
    """The numbers of the operations that have the same name. The number of a failed operation is used again, the smallest first."""

    def __init__(self) -> None:
        self._next, self._returned = 0, list[int]()

    def take(self) -> int:
        if self._returned:
            return heappop(self._returned)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heappush(self._returned, number)


class _Counts:
    """The counts of operations and agents that the handler of one attempt has started, by name."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int | None, str], _Numbers] = {}  # by turn and name of the operation
        self.agents: Counter[tuple[int | None, str, str]] = Counter()  # by turn, phase and name of the agent
        self.awaited: set[str] = set()  # the calls of agents that the handler's own task awaits


_counts: WeakKeyDictionary[AsyncRun[Any], _Counts] = WeakKeyDictionary()


def async_run(framework: str) -> AsyncRun[Any] | None:
    """Return the current run, or None outside of a handler.

    Args:
        framework: The name of the framework, for the error message.

    Raises:
        Refused: If the handler is not async.
    """
    run = find_current_run()
    if run is None or isinstance(run, AsyncRun):
        return run
    raise Refused(f"a durable agent of {framework} needs an async handler: write `async def`, and await the agent")


async def call_step(run: AsyncRun[Any], name: str, body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Call a coroutine function as a phase, and return its output as it is read back from the store.

    Operations of the same name are numbered in the order in which they start. If an operation fails, its number becomes free, so
    that a repetition gets the same number as in a later attempt.

    Args:
        run: The run.
        name: The name of the operation. A long name is shortened.
        body: The function.
    """
    numbers = _counts_of(run).numbers.setdefault((run._draft.turn, name), _Numbers())
    number = numbers.take()
    try:
        return await run.phase(phase_name(name if number == 0 else f"{name} ~{number}"), body)
    except BaseException:
        numbers.give_back(number)
        raise


def number_agent(run: AsyncRun[Any], agent: str) -> str:
    """Return an identifier for a call of an agent that is the same in every attempt.

    Calls are numbered by agent, by turn of `loop` and by the phase that makes the call, in the order in which they start.
    """
    turn, inside = run._draft.turn, current_phase.get()
    agents = _counts_of(run).agents
    number = agents[turn, inside, agent]
    agents[turn, inside, agent] += 1
    place = "" if turn is None else f"{turn}."
    if inside:
        place += blake2s(inside.encode(), digest_size=6).hexdigest() + "."
    return f"{place}{number}"


def check_prices(run: AsyncRun[Any], models: Callable[[], list[ModelName]]) -> list[ModelName]:
    """Check that the prices of models are known, if the budget of a run limits dollars.

    Call this before a model request, in its phase. The provider is paid for each request that is sent. If the price is
    unknown, the run fails and the paid response is lost. A resumed run does not check a saved request again.

    Args:
        run: The run.
        models: Returns the names of all models that may answer the request. It is called only if the budget limits dollars: it
            reads attributes of models, which may raise errors, and other runs do not need the names.

    Returns:
        The names, for `count_request`. Empty if the budget does not limit dollars.

    Raises:
        UnknownPrice: If the budget limits the dollars, and the price of a model is not known.
    """
    if run.left.usd is None:
        return []
    names = models()
    for model in names:
        try:
            price_by_names([model], {}, _AGENT_ADVICE)
        except UnknownPrice as error:
            raise UnknownPrice(f"no request was sent, because the budget of the run limits dollars: {error}") from None
    return names


def count_request(run: AsyncRun[Any], models: Sequence[ModelName], usage: ModelUsage) -> None:
    """Count a model request for the budget of a run. A run without a budget counts nothing, so that it sends nothing for it.

    Call this in the phase of the request, so that a resumed run does not count a saved request again.

    Args:
        run: The run.
        models: The names of the model. The first name whose price is known decides: pass the name that the response reports
            first, and then the requested names. It may be empty if the budget does not limit dollars.
        usage: The tokens of the request.

    Raises:
        UnknownPrice: If the budget limits the dollars, and the price of none of the names is known. `check_prices` prevents this.
    """
    left, given = run.left, usage.get("input_tokens", 0)
    if left.usd is None and left.tokens is None and left.requests is None:
        return
    run.spend(tokens=given + usage.get("output_tokens", 0), requests=1)
    if left.usd is not None:
        # Some providers do not count cached tokens as input tokens, and a table of prices needs at least as many input tokens.
        read = min(usage.get("cache_read_tokens", 0), given)
        written = min(usage.get("cache_write_tokens", 0), given - read)
        cached: ModelUsage = {"cache_read_tokens": read, "cache_write_tokens": written}
        run.spend(usd=price_by_names(models, {**usage, **cached}, _AGENT_ADVICE))


@contextmanager
def budget_errors() -> Iterator[None]:
    """Raise the error of a spent budget or of an unknown price, if a framework has wrapped it in an error of its own.

    A wrapped error would be retried like any other failure.
    """
    try:
        yield
    except Exception as error:
        cause = error.__cause__
        while cause is not None and not isinstance(cause, (BudgetExceeded, UnknownPrice)):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def emit_event(run: AsyncRun[Any], event: dict[str, Any]) -> None:
    """Emit an event. If it cannot be stored, emit a short event with the reason instead, because no event may make a call fail."""
    try:
        run.emit(event)
    except (NotPlain, TooLarge) as error:
        kind = {
            name: value for name, value in event.items() if name in ("event_kind", "type", "tool_name", "tool_call_id")
        }
        run.emit({**kind, "omitted": str(error)[:200]})


async def note_waits(run: AsyncRun[Any], waits: Iterable[str]) -> None:
    """Write a note that says which signals a run waits for. This is a phase, so that a resumed run does not repeat the note.

    Args:
        run: The run.
        waits: The descriptions of the signals.
    """
    text = "waits for " + ", ".join(waits)

    async def note() -> None:
        run.note(text)

    await call_step(run, f"note {blake2s(text.encode(), digest_size=6).hexdigest()}", note)


def remember_caller(run: AsyncRun[Any], agent_call: str) -> None:
    """Remember whether the handler's own task calls an agent. Only such an agent may wait for signals.

    Args:
        run: The run.
        agent_call: The identifier of the call.
    """
    with suppress(Refused):
        run._backing.check_task()
        _counts_of(run).awaited.add(agent_call)


async def receive(run: AsyncRun[Any], topic: str, agent_call: str) -> Signal:
    """Wait for a signal inside a call of an agent, which may have started tasks of its own.

    Args:
        run: The run.
        topic: The topic.
        agent_call: The identifier of the call, as `remember_caller` got it.

    Raises:
        Refused: If another task than the handler's own has called the agent. The other tasks of the handler would continue while
            the next attempt runs.
    """
    token = in_awaited_task.set(agent_call in _counts_of(run).awaited)
    try:
        return await run.receive(topic)
    finally:
        in_awaited_task.reset(token)


def _counts_of(run: AsyncRun[Any]) -> _Counts:
    counts = _counts.get(run)
    if counts is None:
        counts = _counts[run] = _Counts()
    return counts


def phase_name(text: str) -> str:
    """Return a valid name of a phase for a text.

    If the text is too long or not printable, the name is its beginning without the unprintable characters, and a hash of the text.
    """
    if len(text) <= LONGEST_NAME and text.isprintable():
        return text
    kept = "".join(character for character in text[: LONGEST_NAME - 20] if character.isprintable())
    return f"{kept}~{blake2s(text.encode(errors='replace'), digest_size=8).hexdigest()}"


def topic_of(what: str, tool_call_id: str) -> str:
    """Return the topic on which the approval or the result of a tool call is sent.

    Args:
        what: `approval` or `result`.
        tool_call_id: The id of the tool call. An id that cannot be part of a topic is hashed.
    """
    try:
        return valid_name(f"{what}.{tool_call_id}", "topic")
    except BadName:
        return f"{what}.{blake2s(tool_call_id.encode(), digest_size=12).hexdigest()}"
