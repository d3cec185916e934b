from __future__ import annotations

import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import workers
from coordinator.errors import BadName, BadOption, Refused
from coordinator.model.enqueue import Inputs
from workers import AsyncRun, Deadline, Registry, Retry, Run
from workers.handlers.async_run import AsyncRun as Renamed

if TYPE_CHECKING:
    from nowhere import Model  # type: ignore[import-not-found]


@pytest.fixture
def runs() -> Registry[None]:
    return Registry()


class FakeRun:
    """A run for functions that do not use it."""


RUN: Any = FakeRun()


# ---- decoration


async def test_handler_called_directly_is_a_plain_function_call(runs):
    @runs.handler
    async def research(run: AsyncRun, topic: str) -> str:
        return f"on {topic}"

    @runs.handler
    def report(run: Run, topic: str) -> str:
        return topic.upper()

    assert await research(RUN, "tides") == "on tides"
    assert report(RUN, topic="tides") == "TIDES"
    assert (research.is_async, report.is_async) == (True, False)
    assert runs.handlers == {"research": research, "report": report}


def test_options_are_kept_and_have_defaults(runs):
    @runs.handler
    def plain(run):
        """What it does."""

    policy, deadline = Retry(limit=4), Deadline(hard=9)

    @runs.handler(
        kind="other.name-1", retry=policy, deadline=deadline, schema=7, grace=3, throttle=0, on_lost_lease="stop"
    )
    def full(run): ...

    assert (plain.kind, plain.schema, plain.grace, plain.throttle, plain.on_lost_lease) == (
        "plain",
        1,
        None,
        1.0,
        "wait",
    )
    assert (plain.retry, plain.deadline, plain.__doc__) == (Retry(), Deadline(), "What it does.")
    assert (full.kind, full.schema, full.grace, full.throttle, full.on_lost_lease) == ("other.name-1", 7, 3, 0, "stop")
    assert (full.retry, full.deadline) == (policy, deadline)


@pytest.mark.parametrize(
    "options",
    [
        {"retry": 4},
        {"retry": None},
        {"deadline": 600},
        {"schema": 0},
        {"schema": 100},
        {"schema": "2"},
        {"grace": -1},
        {"throttle": float("nan")},
        {"on_lost_lease": "panic"},
    ],
)
def test_invalid_option_is_refused(runs, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        runs.handler(**options)


def test_an_unknown_option_is_refused(runs):
    with pytest.raises(TypeError, match="colour"):
        runs.handler(colour="blue")


def test_kind_must_be_a_valid_name(runs):
    with pytest.raises(BadName, match="two words"):
        runs.handler(kind="two words")(lambda run: None)
    with pytest.raises(BadName, match="lambda"):
        runs.handler(lambda run: None)
    with pytest.raises(BadName, match="''"):
        runs.handler(kind="")(lambda run: None)


def test_a_kind_has_one_handler(runs):
    runs.handler(kind="x")(lambda run: None)

    def second(run): ...

    with pytest.raises(Refused, match=r"'x' has two handlers, .*<lambda> and .*second"):
        runs.handler(kind="x")(second)
    assert runs.handlers["x"].function is not second


async def agen(run):
    yield 1


def gen(run):
    yield 1


def no_run(): ...


def only_rest(*run): ...


def only_keyword(*, run): ...


def with_rest(run, *parts): ...


def positional_only(run, topic, /): ...


@pytest.mark.parametrize(
    "function", [agen, gen, no_run, only_rest, only_keyword, with_rest, positional_only, Run, 3, FakeRun()]
)
def test_function_that_can_never_be_called_is_refused_at_decoration(runs, function):
    with pytest.raises(Refused):
        runs.handler(kind="it")(function)
    assert not runs.handlers


def test_partial_requires_an_explicit_kind(runs):
    def add(run, a, b): ...

    with pytest.raises(Refused, match="kind="):
        runs.handler(functools.partial(add, b=2))
    handler = runs.handler(kind="add")(functools.partial(add, b=2))
    assert handler.fits({"a": 1}) is None


# ---- the annotation of the run parameter


async def async_with_run(run: Run[Any]): ...
async def async_with_bare_run(run: Run): ...
async def async_with_dotted_run(run: workers.Run[Any]): ...
async def async_with_run_of_unknown(run: Run[Model]): ...
def plain_with_async_run(run: AsyncRun[Any]): ...
def plain_with_renamed(run: Renamed): ...
def plain_with_quoted(run: "AsyncRun[Model]"): ...  # noqa: UP037


@pytest.mark.parametrize(
    "function", [async_with_run, async_with_bare_run, async_with_dotted_run, async_with_run_of_unknown]
)
def test_async_handler_annotated_with_a_sync_run_is_refused(runs, function):
    with pytest.raises(Refused, match="is async: annotate `run: AsyncRun`, not Run"):
        runs.handler(function)


@pytest.mark.parametrize("function", [plain_with_async_run, plain_with_renamed, plain_with_quoted])
def test_sync_handler_annotated_with_an_async_run_is_refused(runs, function):
    with pytest.raises(Refused, match="is plain: annotate `run: Run`, not AsyncRun"):
        runs.handler(function)


def test_annotations_that_are_objects_are_checked_too(runs):
    async def wrong(run): ...

    wrong.__annotations__["run"] = Run[int]
    with pytest.raises(Refused, match="async"):
        runs.handler(wrong)


def test_a_sync_wrapper_around_an_async_handler_is_refused(runs):
    async def inner(run: AsyncRun[Any]): ...

    @functools.wraps(inner)
    def outer(*args):
        return inner(*args)

    with pytest.raises(Refused, match="plain"):
        runs.handler(outer)


def test_other_annotations_are_ignored(runs):
    async def strange(run: list[int]): ...
    async def unknown(run: Model): ...
    async def right(run: AsyncRun[Model]): ...

    for function in (strange, unknown, right):
        runs.handler(function)
    assert len(runs.handlers) == 3


# ---- inputs


@pytest.fixture
def research(runs):
    @runs.handler
    async def research(run, topic, depth=3, *, tone="dry"): ...

    return research


def test_inputs_are_stored_by_name_without_defaults(research):
    assert research.inputs("tides") == Inputs("research", {"topic": "tides"})
    assert research.inputs("tides", 4, tone="wry").values == {"topic": "tides", "depth": 4, "tone": "wry"}
    assert research.inputs(depth=4, topic="tides").values == {"topic": "tides", "depth": 4}


@pytest.mark.parametrize(
    ("args", "kwargs", "sentence"),
    [
        ((), {}, "research lacks 'topic'; it takes 'depth', 'tone', 'topic'"),
        ((), {"colour": 1}, "research lacks 'topic' and does not know 'colour'; it takes 'depth', 'tone', 'topic'"),
        (("tides",), {"run": 1}, "research does not know 'run'; it takes 'depth', 'tone', 'topic'"),
        (("tides",), {"topic": "x"}, "research got 'topic' twice, by position and by name"),
        (("tides", 1, "dry"), {}, "research takes 2 inputs by position, and 3 were given"),
    ],
)
def test_inputs_that_do_not_match_the_signature_are_refused(research, args, kwargs, sentence):
    with pytest.raises(Refused) as caught:
        research.inputs(*args, **kwargs)
    assert str(caught.value) == sentence


def test_fits_checks_the_inputs_of_a_run(research):
    assert research.fits({"topic": "tides", "tone": "wry"}) is None
    assert research.fits({}) is not None
    assert research.fits({"topic": 1, 3: 4}) == "research does not know 3; it takes 'depth', 'tone', 'topic'"


def test_handler_with_keyword_arguments_accepts_any_name_that_can_be_passed(runs):
    def free(run, topic, **rest): ...
    def positional(run, /, **rest): ...

    handler = runs.handler(free)
    assert handler.fits({"topic": 1, "other": 2}) is None
    assert handler.inputs("tides", other=2).values == {"topic": "tides", "other": 2}
    assert "lacks 'topic'" in str(handler.fits({"other": 2}))
    assert "does not know 'run'" in str(handler.fits({"topic": 1, "run": 2}))
    assert "does not know 3" in str(handler.fits({"topic": 1, 3: 2}))
    assert runs.handler(positional).fits({"run": 2}) is None
    assert "takes no inputs" in str(runs.handler(lambda_with_none).fits({"a": 1}))


def lambda_with_none(run): ...


# ---- schemas


def test_handler_listens_to_every_schema_that_its_migrations_accept(runs):
    @runs.handler(schema=5)
    def report(run): ...

    assert report.schemas() == (0, 5)
    report.migration(4)(print)
    report.migration(2)(print)
    assert report.schemas() == (0, 5, 4)

    @report.migration(3)
    def third(inputs): ...

    assert report.schemas() == (0, 5, 4, 3, 2)
    assert report.migrations[3] is third
    assert runs.handler(lambda_with_none).schemas() == (0, 1)


@pytest.mark.parametrize("schema", [0, 2, 3, -1])
def test_migration_must_start_below_the_current_schema(runs, schema):
    report = runs.handler(schema=2)(lambda_with_none)
    with pytest.raises(BadOption, match=f"migration\\({schema}\\)"):
        report.migration(schema)


def test_schema_has_at_most_one_migration(runs):
    report = runs.handler(schema=2)(lambda_with_none)
    report.migration(1)(print)
    with pytest.raises(BadOption, match="exists already"):
        report.migration(1)


# ---- merged registries


def lifespan_of(name: str, events: list[str]) -> Any:
    @asynccontextmanager
    async def lifespan():
        events.append(f"open {name}")
        yield name
        events.append(f"close {name}")

    return lifespan


async def test_merged_registry_opens_each_lifespan_once_for_its_own_handlers():
    events: list[str] = []
    one, two, bare = Registry(lifespan_of("one", events)), Registry(lifespan_of("two", events)), Registry()
    for registry, kinds in ((one, "ab"), (two, "c"), (bare, "d")):
        for kind in kinds:
            registry.handler(kind=kind)(lambda run: None)

    whole = Registry.merged(Registry.merged(one, two), bare, one)
    assert list(whole.handlers) == ["a", "b", "c", "d"]
    async with whole.resources() as resources:
        assert resources == {"a": "one", "b": "one", "c": "two", "d": None}
        assert events == ["open one", "open two"]
    assert events[2:] == ["close two", "close one"]


async def test_single_registry_opens_its_lifespan():
    runs = Registry(lifespan_of("one", []))
    runs.handler(kind="a")(lambda run: None)
    async with runs.resources() as resources:
        assert resources == {"a": "one"}


def test_registries_with_the_same_kind_cannot_be_merged():
    one, two = Registry(), Registry()
    for registry in (one, two):
        registry.handler(kind="a")(lambda run: None)
    with pytest.raises(Refused, match="'a' has two handlers"):
        Registry.merged(one, two)
    assert list(one.handlers) == list(two.handlers) == ["a"]


def test_handlers_are_read_only(runs):
    with pytest.raises(TypeError):
        runs.handlers["x"] = None
