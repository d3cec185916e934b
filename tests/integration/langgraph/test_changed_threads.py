"""Threads of `RedisSaver` that others delete, prune or copy, or that expire, while a graph writes to them: no value is lost."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.graph import END, START, StateGraph

from coordinator.store.script import Request
from tests.servers import Server
from workers.integrations.langgraph import RedisSaver, upkeep_plans
from workers.integrations.langgraph.save_plans import Place, Steps

CONFIG: Any = {"configurable": {"thread_id": "t"}}
COPY: Any = {"configurable": {"thread_id": "copy"}}
TEXT = "a text that is long enough to be an item of its own, "


@pytest.fixture
def savers(saver_url: str, namespace: str) -> Iterator[tuple[RedisSaver, RedisSaver]]:
    """Two savers, which stand for two processes."""
    with RedisSaver(saver_url, namespace) as one, RedisSaver(saver_url, namespace) as other:
        yield one, other


def extend(saver: RedisSaver, before: Any, *texts: str, run: str = "") -> Any:
    """Append texts to the list of a thread, as a graph does that has read a checkpoint, and return the new configuration."""
    parent = saver.get_tuple(before)
    values = [*(parent.checkpoint["channel_values"]["list"] if parent else []), *texts]
    return put(saver, before, parent, values, run)


def put(saver: RedisSaver, before: Any, parent: CheckpointTuple | None, values: list[str], run: str = "") -> Any:
    current = str(parent.checkpoint["channel_versions"]["list"]) if parent else None
    version = saver.get_next_version(current, None)
    checkpoint = empty_checkpoint() | {"channel_values": {"list": values}, "channel_versions": {"list": version}}
    metadata: Any = {"source": "loop", "step": 0, "run_id": run} if run else {"source": "loop", "step": 0}
    config = parent.config if parent else before
    config["configurable"].setdefault("checkpoint_ns", "")
    return saver.put(config, checkpoint, metadata, {"list": version})


def texts_of(saver: RedisSaver, config: Any) -> list[str]:
    found = saver.get_tuple(config)
    assert found is not None
    return list(found.checkpoint["channel_values"]["list"])


class State(TypedDict):
    kept: str
    steps: Annotated[list[str], operator.add]


def graph_of(saver: RedisSaver, between: Callable[[], None]) -> Any:
    """Return a graph of two nodes. The channel `kept` gets its value from the input, and no node changes it."""

    def second(state: State) -> dict[str, Any]:
        between()
        return {"steps": ["second"]}

    graph = StateGraph(State)
    graph.add_node("first", lambda state: {"steps": ["first"]})
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver)


@pytest.mark.quick_cases(1)
def test_thread_that_is_deleted_during_a_step_is_saved_with_all_its_channels(
    savers: tuple[RedisSaver, RedisSaver],
) -> None:
    """The step after the deletion changes one channel. The other ones are not on the server any more."""
    one, other = savers
    graph = graph_of(one, lambda: other.delete_thread("t"))
    found = graph.invoke({"kept": TEXT, "steps": []}, CONFIG, durability="sync")
    assert found == {"kept": TEXT, "steps": ["first", "second"]}
    assert graph.get_state(CONFIG).values == found


def test_new_process_saves_all_channels_of_a_checkpoint_that_the_server_lacks(
    savers: tuple[RedisSaver, RedisSaver],
) -> None:
    """The process knows nothing of the thread, so it does not know that the value of the unchanged channel is gone."""
    one, other = savers
    first: Any = empty_checkpoint() | {"channel_values": {"kept": TEXT}, "channel_versions": {"kept": "1"}}
    config = one.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, first, {}, {"kept": "1"})
    one.delete_thread("t")
    second: Any = empty_checkpoint() | {
        "channel_values": {"kept": TEXT, "new": "new"},
        "channel_versions": {"kept": "1", "new": "1"},
    }
    other.put(config, second, {}, {"new": "1"})
    found = one.get_tuple(CONFIG)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"kept": TEXT, "new": "new"}


def test_thread_whose_saver_has_no_ttl_any_more_does_not_expire(real_server: Server, namespace: str) -> None:
    """A program is started again without `ttl`. The server must forget the time of the old one."""
    with RedisSaver(real_server.url, namespace, ttl=100) as before:
        extend(before, CONFIG, TEXT, run="r1")
        before.copy_thread("t", "copy")
    with RedisSaver(real_server.url, namespace) as after:
        extend(after, CONFIG, TEXT, run="r1")
        after.copy_thread("t", "copy")
    keys = list(real_server.admin.scan_iter(f"{{{namespace}:*"))
    assert len(keys) >= 6
    assert {key: real_server.admin.pttl(key) for key in keys} == dict.fromkeys(keys, -1)


def test_process_whose_checkpoint_was_deleted_does_not_continue_the_list_of_another(
    savers: tuple[RedisSaver, RedisSaver],
) -> None:
    """A run is rolled back: its checkpoint is deleted, and another process continues before it. Then its late save arrives.

    Both have extended the same list, so both would give the same name to different parts of the list.
    """
    late, other = savers
    first = extend(late, CONFIG, TEXT + "1", run="r1")
    second = extend(late, first, TEXT + "2", run="r2")
    parent = late.get_tuple(second)
    other.delete_for_runs(["r2"])
    extend(other, CONFIG, TEXT + "another 2", run="r3")
    third = put(late, second, parent, [TEXT + "1", TEXT + "2", TEXT + "3"], "r2")
    assert texts_of(other, third) == [TEXT + "1", TEXT + "2", TEXT + "3"]
    fourth = put(late, third, late.get_tuple(third), [TEXT + "1", TEXT + "2", TEXT + "3", TEXT + "4"], "r2")
    assert texts_of(other, fourth) == [TEXT + "1", TEXT + "2", TEXT + "3", TEXT + "4"]


def test_list_whose_newest_part_was_deleted_twice_is_still_not_shared(savers: tuple[RedisSaver, RedisSaver]) -> None:
    """The server remembers that a part of the list was deleted, also after the next deletion."""
    late, other = savers
    first = extend(late, CONFIG, TEXT + "1", run="r1")
    second = extend(late, first, TEXT + "2", run="r2")
    parent = late.get_tuple(second)
    for run in ("r2", "r3"):
        other.delete_for_runs([run])
        extend(other, CONFIG, TEXT + "another 2", run="r3")
    third = put(late, second, parent, [TEXT + "1", TEXT + "2", TEXT + "3"], "r2")
    assert texts_of(other, third) == [TEXT + "1", TEXT + "2", TEXT + "3"]


def test_copy_into_a_thread_leaves_the_own_checkpoints_of_that_thread_as_they_were(
    savers: tuple[RedisSaver, RedisSaver],
) -> None:
    """A thread was copied, and both continue the same list. Then the copy is copied back."""
    one, _ = savers
    extend(one, CONFIG, TEXT + "1")
    one.copy_thread("t", "copy")
    here, there = extend(one, CONFIG, TEXT + "2"), extend(one, COPY, TEXT + "another 2")
    one.copy_thread("copy", "t")
    assert texts_of(one, here) == [TEXT + "1", TEXT + "2"]
    assert texts_of(one, there) == [TEXT + "1", TEXT + "another 2"]
    there["configurable"]["thread_id"] = "t"
    assert texts_of(one, there) == [TEXT + "1", TEXT + "another 2"]


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("change", ["delete source", "prune source", "delete target", "prune target"])
def test_thread_that_changes_during_a_copy_is_copied_whole_or_not_at_all(
    savers: tuple[RedisSaver, RedisSaver], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process deletes content after each call of the copy in turn. Every checkpoint of the copy can be read."""
    one, other = savers
    monkeypatch.setattr(upkeep_plans, "COPIED", 2)
    copy, trips = upkeep_plans.copy_thread, 0

    def disturbed(source: Place, target: Place, at: int) -> Steps[None]:
        nonlocal trips
        plan, reply = copy(source, target), None
        trips = 0
        try:
            request: Request | list[Request] = next(plan)
            while True:
                reply = yield request
                trips += 1
                if trips == at:
                    thread = "t" if change.endswith("source") else "copy"
                    other.delete_thread(thread) if change.startswith("delete") else other.prune([thread])
                request = plan.send(reply)
        except StopIteration:
            return

    at = 1
    while True:
        for thread in ("t", "copy"):
            one.delete_thread(thread)
        if change == "prune target":
            extend(one, COPY, TEXT)
        config = CONFIG
        for number in range(3):
            config = extend(one, config, f"{TEXT}{number}")
        monkeypatch.setattr(upkeep_plans, "copy_thread", lambda source, target, at=at: disturbed(source, target, at))
        one.copy_thread("t", "copy")
        found = [found.checkpoint["channel_values"]["list"] for found in other.list(COPY)]
        assert all(texts in ([TEXT], *([f"{TEXT}{n}" for n in range(k)] for k in range(1, 4))) for texts in found)
        if change.startswith("prune"):
            assert [f"{TEXT}{number}" for number in range(3)] in found
        newest = other.get_tuple(COPY)
        assert (newest is not None) == bool(found)
        other.prune(["copy"])
        if trips < at:
            break
        at += 1
    assert at > 5


def test_ids_of_checkpoints_that_are_no_times_are_not_mixed_up(
    savers: tuple[RedisSaver, RedisSaver],
) -> None:
    """Ids of 36 characters that are no UUIDs. Their middle is the same."""
    one, other = savers
    ids = [f"checkpoint of a test: it has number {n}"[-36:] for n in range(2)]
    assert {len(id) for id in ids} == {36}
    configs = []
    for saver, id in ((one, ids[0]), (other, ids[1])):
        checkpoint: Any = empty_checkpoint() | {"id": id}
        configs.append(saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, checkpoint, {}, {}))
    one.put_writes(configs[0], [("channel", "value")], "task")
    found = [one.get_tuple(config) for config in configs]
    assert [one and [value for _, _, value in one.pending_writes or []] for one in found] == [["value"], []]


@pytest.mark.matrix("waits through a timeout")
async def test_save_from_a_thread_does_not_wait_forever_for_one_of_the_event_loop_that_it_blocks(
    saver_url: str, namespace: str
) -> None:
    """A coroutine calls a method for threads while another coroutine of the loop saves. The earlier save can't end before it."""
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with RedisSaver(saver_url, namespace) as saver:
        first = empty_checkpoint()
        with saver._threads.of("t").in_order(checkpoint=True):
            saver.put(config, first, {}, {})
            await saver.aput_writes(saver.put(config, first, {}, {}), [("channel", "value")], "task")
        found = await saver.aget_tuple(CONFIG)
        assert found is not None
        assert found.pending_writes == [("task", "channel", "value")]
