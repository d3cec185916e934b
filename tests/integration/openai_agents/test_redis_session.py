"""`RedisSession` on real servers: programs share it, each change is made once, and the doctor does not mind its keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agents import Agent, RunConfig, SessionSettings
from agents.testing import ScriptedModel, assistant_message

from coordinator import Client
from coordinator.config import address
from coordinator.doctor.examiner import examine
from coordinator.errors import BadName, BadOption, NotPlain, Unreadable
from coordinator.store.plans.namespace import read_facts
from coordinator.store.transport.wire import Wire, drive
from tests.servers import Server
from workers import AsyncRun, Registry, testing
from workers.integrations.openai_agents import DurableRunner, RedisSession
from workers.testing import Crash

pytestmark = pytest.mark.integration
QUIET = RunConfig(tracing_disabled=True)
Make = Callable[..., RedisSession]


def user(content: str) -> Any:
    return {"role": "user", "content": content}


def contents(items: list[Any]) -> list[str]:
    return [item["content"] if isinstance(item["content"], str) else item["content"][0]["text"] for item in items]


@pytest.fixture
async def make(session_url: str, namespace: str) -> AsyncIterator[Make]:
    made: list[RedisSession] = []

    def make_session(id: str = "chat", **options: Any) -> RedisSession:
        made.append(RedisSession(id, session_url, namespace, **options))
        return made[-1]

    yield make_session
    for session in made:
        await session.close()


async def test_programs_share_a_session_by_its_id(make: Make) -> None:
    one, other, stranger = make(), make(), make("another chat")
    await one.add_items([user("a"), user("b")])
    await other.add_items([user("c")])
    assert contents(await one.get_items()) == contents(await other.get_items()) == ["a", "b", "c"]
    assert await stranger.get_items() == []
    assert await other.pop_item() == user("c")
    assert contents(await one.get_items(limit=1)) == ["b"]
    await other.clear_session()
    assert (await one.get_items(), await one.pop_item()) == ([], None)


async def test_items_come_back_as_they_were(make: Make) -> None:
    item: Any = {"role": "user", "content": "żółć \x00 \n", "more": [1, 2.5, None, True, {"deep": ["x" * 100_000]}]}
    await make().add_items([item])
    assert await make().get_items() == [item]


async def test_settings_limit_the_items(make: Make) -> None:
    session = make(session_settings=SessionSettings(limit=2))
    await session.add_items([user(str(number)) for number in range(5)])
    assert contents(await session.get_items()) == ["3", "4"]
    assert contents(await session.get_items(limit=3)) == ["2", "3", "4"]
    assert await session.get_items(limit=0) == []


async def test_concurrent_programs_lose_no_item(make: Make) -> None:
    sessions = [make() for _ in range(4)]
    await asyncio.gather(*(sessions[n % 4].add_items([user(f"{n} one"), user(f"{n} two")]) for n in range(40)))
    found = contents(await sessions[0].get_items())
    assert sorted(found) == sorted(f"{n} {which}" for n in range(40) for which in ("one", "two"))
    assert all(second == first.replace("one", "two") for first, second in zip(found[::2], found[1::2], strict=True))


async def test_operation_is_carried_out_once(make: Make) -> None:
    session = make()
    for _ in range(2):
        await session.add_once([user("a"), user("b")], "first")
    await session.add_items([user("c")])
    await session.add_once([user("a"), user("b")], "first")
    assert [await session.pop_once("second") for _ in range(2)] == [user("c")] * 2
    assert contents(await session.get_items()) == ["a", "b"]
    await session.clear_once("third")
    await session.add_items([user("d")])
    await session.clear_once("third")
    assert contents(await session.get_items()) == ["d"]


async def test_item_that_cannot_be_stored_changes_nothing(make: Make) -> None:
    session = make()
    with pytest.raises(NotPlain, match="session 'chat'"):
        await session.add_items([user("a"), user(object())])  # type: ignore[arg-type]
    assert await session.get_items() == []


async def test_closed_session_is_refused_and_the_others_work(make: Make) -> None:
    one, other = make(), make()
    await one.add_items([user("a")])
    await one.close()
    for call in (one.get_items, one.pop_item, one.clear_session, one.ping):
        with pytest.raises(RuntimeError, match="RedisSession is closed"):
            await call()
    assert await other.ping()
    assert contents(await other.get_items()) == ["a"]


def test_session_works_in_one_event_loop_after_another(session_url: str, namespace: str) -> None:
    session = RedisSession("chat", session_url, namespace)

    async def add(content: str) -> list[str]:
        await session.add_items([user(content)])
        found = contents(await session.get_items())
        await session._shared.aclose()
        return found

    assert asyncio.run(add("a")) == ["a"]
    assert asyncio.run(add("b")) == ["a", "b"]


def test_wrong_options_are_refused() -> None:
    for id in ("", "x" * 501):
        with pytest.raises(BadName):
            RedisSession(id)
    with pytest.raises(BadOption, match="ttl"):
        RedisSession("chat", ttl=0)
    with pytest.raises(BadOption):
        RedisSession("chat", "redis://localhost", timeout=0)


class DyingSession(RedisSession):
    """A session whose process dies after one of its changes was made, and before the run is saved."""

    left = 0

    async def add_once(self, items: Any, operation: str) -> None:
        await super().add_once(items, operation)
        DyingSession.left -= 1
        if DyingSession.left == 0:
            raise Crash


@pytest.mark.parametrize("change", [1, 2, 3, 4])
async def test_session_in_a_run_has_each_item_once_although_another_program_uses_it(
    session_url: str, namespace: str, make: Make, change: int
) -> None:
    @Registry().handler
    async def chat(run: AsyncRun[Any]) -> None:
        session, agent = DyingSession("chat", session_url, namespace), Agent[Any]("speaker", model=run.resources)
        for question in ("one", "two"):
            await DurableRunner.run(agent, question, session=session, run_config=QUIET)
        await session.close()

    DyingSession.left = change
    run = testing.AsyncRun(ScriptedModel([[assistant_message("first")], [assistant_message("second")]]))
    with pytest.raises(Crash):
        await chat(run)
    await make().add_items([user("from elsewhere")])
    await chat(run.after_crash())
    found = contents(await make().get_items())
    assert found.index("from elsewhere") == change
    assert [one for one in found if one != "from elsewhere"] == ["one", "first", "two", "second"]


async def test_damaged_item_is_named(real_server: Server, namespace: str) -> None:
    session = RedisSession("chat", real_server.url, namespace)
    await session.add_items([user("a")])
    key = next(iter(real_server.admin.scan_iter(f"{{{namespace}:sessions-*}}:session:chat")))
    real_server.admin.rpush(key, b"\xc1")
    with pytest.raises(Unreadable, match="item of session 'chat'"):
        await session.get_items()
    await session.close()


async def test_session_with_a_ttl_expires_and_the_doctor_leaves_it_alone(real_server: Server, namespace: str) -> None:
    with Client(real_server.url, namespace) as client:
        client.enqueue("anything")
        session = RedisSession("chat", real_server.url, namespace, ttl=100)
        await session.add_items([user("a")])
        keys = list(real_server.admin.scan_iter(f"{{{namespace}:sessions-*}}:*"))
        assert sorted(key.decode().partition("}:")[2] for key in keys) == ["session-operations:chat", "session:chat"]
        assert all(real_server.admin.ttl(key) > 0 for key in keys)
        await session.close()
        wire = Wire(address(real_server.url), timeout=5)
        space = drive(wire, read_facts(namespace))
        assert space is not None
        assert drive(wire, examine(space, repair=True)).healthy
        wire.close()
    assert set(real_server.admin.scan_iter(f"{{{namespace}:sessions-*}}:*")) == set(keys)
