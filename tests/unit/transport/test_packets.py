"""Which calls travel together, and how each gets its own answer."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import BadCall
from coordinator.store.script import Call, Request, read
from coordinator.store.scripts import CHECKPOINT, CLAIM, COMPLETE, ENQUEUE, FAIL, RELEASE, VIEW
from coordinator.store.transport.packets import MOST_BYTES, MOST_ITEMS, count_next_trip, pack

AT, ELSEWHERE = "{t:0}", "{t:1}"


def complete(run: str, result: bytes = b"", at: str = AT) -> Call:
    return COMPLETE.each(at, run, {"now": ""}, id=run, token="t", result=result, rest=b"")


def save(run: str, size: int = 0) -> Call:
    return CHECKPOINT.each(AT, run, {"now": ""}, id=run, token="t", delta=b"x" * size)


def fail(run: str) -> Call:
    return FAIL.call(AT, now="", id=run, token="t", error=b"", brief=b"", delta=b"")


def release(run: str) -> Call:
    return RELEASE.call(AT, now="", id=run, token="t", mode="stopping", jitter="0.5", delta=b"")


def claim() -> Call:
    return CLAIM.call(
        AT, [("q:k@0",), ("q:k@1",)], now="", worker="w", number=1, want=1, alone=0, outdated=0, inline=1, budget=1
    )


# ---- packing


def test_calls_of_one_script_and_partition_become_one_command() -> None:
    requests: list[Request] = [complete("a"), save("b"), complete("c"), complete("d", at=ELSEWHERE), save("e")]
    packets = pack(requests)
    assert [packet.carries for packet in packets] == [[0, 2], [1, 4], [3]]
    assert packets[0].command(bare=False, whole=False) == [
        "EVALSHA",
        COMPLETE.sha,
        1,
        AT,
        "",
        "a",
        "t",
        b"",
        b"",
        "c",
        "t",
        b"",
        b"",
    ]


def test_calls_with_different_fixed_arguments_become_separate_commands() -> None:
    other = COMPLETE.each(AT, "b", {"now": "5"}, id="b", token="t", result=b"", rest=b"")
    assert [packet.carries for packet in pack([complete("a"), other])] == [[0], [1]]


def test_call_without_a_list_argument_stays_alone() -> None:
    packets = pack([fail("a"), fail("b"), read(AT, "GET", "x"), claim()])
    assert [packet.carries for packet in packets] == [[0], [1], [2], [3]]
    assert packets[2].command(bare=False, whole=True) == ["GET", "x"]
    assert packets[3].command(bare=False, whole=False)[-2:] == ["q:k@0", "q:k@1"]


def test_call_with_many_items_is_not_mistaken_for_one_item() -> None:
    items = [("id", "q:k@0", b"", 0, "", "", "", "", "-", "", "")] * 2
    packet = pack([ENQUEUE.call(AT, items, now="", birth="b")])[0]
    assert packet.spread(["first", "second"]) == [["first", "second"]]


def test_command_has_a_limit_of_items_and_bytes() -> None:
    packets = pack([complete(str(n)) for n in range(MOST_ITEMS + 1)])
    assert [len(packet.items) for packet in packets] == [MOST_ITEMS, 1]
    packets = pack([complete(str(n), b"x" * (MOST_BYTES // 2)) for n in range(3)])
    assert [len(packet.items) for packet in packets] == [1, 1, 1]


def test_whole_and_bare_commands() -> None:
    packet = pack([complete("a")])[0]
    assert packet.command(bare=False, whole=True)[:2] == ["EVAL", COMPLETE.text]
    assert packet.command(bare=True, whole=True)[:2] == ["EVAL", COMPLETE.text_without_shebang]
    assert packet.command(bare=True, whole=False)[:2] == ["EVALSHA", COMPLETE.sha_without_shebang]


# ---- distributing the answers


def test_each_call_gets_its_own_answer() -> None:
    packet = pack([complete("a"), complete("b")])[0]
    assert packet.spread([b"ok", b"fenced"]) == [b"ok", b"fenced"]


def test_error_of_a_command_goes_to_all_its_calls() -> None:
    error = ValueError("x")
    assert pack([complete("a"), complete("b")])[0].spread(error) == [error, error]


@pytest.mark.parametrize("reply", [[], [b"ok"], [b"ok"] * 3, b"ok", None])
def test_answer_of_the_wrong_length_is_given_to_no_call(reply: Any) -> None:
    answers = pack([complete("a"), complete("b")])[0].spread(reply)
    assert [type(answer) for answer in answers] == [BadCall, BadCall]


def test_one_bad_reply_leaves_the_other_commands_alone() -> None:
    first, second = pack([complete("a"), save("b")])
    assert isinstance(first.spread([])[0], BadCall)
    assert second.spread([[b"ok", 1]]) == [[b"ok", 1]]


# ---- trips


def test_packet_never_contains_two_calls_about_one_run() -> None:
    for first in (save("a"), fail("a"), VIEW.call(AT, id="a")):
        for second in (save("a"), release("a"), complete("a")):
            assert count_next_trip([save("b"), first, fail("c"), second, save("d")]) == 3


def test_calls_without_a_run_join_any_packet() -> None:
    assert count_next_trip([claim(), claim(), read(AT, "GET", "x"), save("a"), read(AT, "GET", "x")]) == 5


def test_packet_has_at_most_one_mebibyte() -> None:
    half = MOST_BYTES // 2
    assert count_next_trip([save("a", half), save("b", half - 1000), save("c", 1000)]) == 2
    assert count_next_trip([save("a", half), save("b", MOST_BYTES)]) == 1


def test_larger_item_is_sent_alone() -> None:
    large = save("a", 3 * MOST_BYTES)
    assert count_next_trip([large, save("b")]) == 1
    assert count_next_trip([save("b"), large]) == 1
    assert count_next_trip([large]) == 1


def test_no_calls_make_no_packet() -> None:
    assert count_next_trip([]) == 0
    assert pack([]) == []
