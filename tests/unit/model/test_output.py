"""Folder: the items of a reader, from any history of attempts, page sizes and interruptions of the reader."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from coordinator.errors import BadOption, Unreadable
from coordinator.model.limits import OUTPUT_PLACES, OUTPUT_REWINDS
from coordinator.model.output import MOST_UNSETTLED, Event, Folder, Gap, Item, Rewind

Entry = tuple[bytes, list[bytes]]


def entry(epoch: int, number: int, place: int, name: str, value: str) -> Entry:
    return f"{epoch}-{number * OUTPUT_PLACES + place}".encode(), [name.encode(), value.encode()]


def event(epoch: int, number: int, base: int = 0, value: int = 1) -> Entry:
    id, _ = entry(epoch, number, 0, "", "")
    return id, [b"e%d" % base, b"1700000000000 " + bytes([value])]


def settled(epoch: int, position: int, upto: int, base: int = 0, mark: int = 1) -> Entry:
    return entry(epoch, position, mark, f"s{base}", str(upto))


def end(epoch: int, position: int, base: int = 0, status: str = "completed") -> Entry:
    return entry(epoch, position, OUTPUT_PLACES - 1, f"x{base}", status)


def short(items: list[Item]) -> list[str]:
    names = {Event: lambda e: f"{e.number}={e.value}", Rewind: lambda r: f"to {r.to}", Gap: lambda g: f"gap {g.count}"}
    return [names[type(item)](item) for item in items]


# ---- single cases


def test_rewind_drops_what_the_reader_has_not_got_yet() -> None:
    assert short(Folder().fold([event(1, 1), event(1, 2), event(2, 2, base=1, value=7)])) == ["1=1", "2=7"]


def test_reader_that_has_the_lost_events_is_told() -> None:
    folder = Folder()
    folder.fold([event(1, 1), event(1, 2), event(1, 3)])
    assert short(folder.fold([event(2, 2, base=1, value=7)])) == ["to 1", "2=7"]


def test_second_rewind_in_a_page_does_not_bring_back_events_of_the_first_attempt() -> None:
    folder = Folder()
    folder.fold([event(1, number) for number in range(1, 6)])
    page = [event(2, 2, base=1, value=2), event(2, 3, base=1, value=2), event(3, 3, base=2, value=3)]
    assert short(folder.fold(page)) == ["to 1", "2=2", "3=3"]


@pytest.mark.parametrize("with_settled", [False, True])
def test_reader_drops_its_events_if_the_server_has_removed_rewinds(with_settled: bool) -> None:
    folder = Folder()
    folder.fold([event(1, number) for number in range(1, 6)])
    rewinds = [entry(epoch, 10 + epoch, 0, f"r{10 + epoch}", "") for epoch in range(2, OUTPUT_REWINDS + 1)]
    if with_settled:
        rewinds.insert(-1, settled(OUTPUT_REWINDS - 1, 9 + OUTPUT_REWINDS, 3))
    assert short(folder.fold(rewinds))[0] == "to 0"


def test_lower_rewind_replaces_a_higher_one() -> None:
    folder = Folder()
    folder.fold([event(1, number) for number in range(1, 6)])
    assert short(folder.fold([event(2, 4, base=3, value=2), event(3, 1, base=0, value=3)])) == ["to 0", "1=3"]


def test_gap_that_a_rewind_cuts_becomes_shorter() -> None:
    assert short(Folder().fold([event(1, 5), event(2, 4, base=3, value=2)])) == ["gap 3", "4=2"]


def test_attempt_that_lost_its_first_events_is_told_as_a_rewind_and_a_gap() -> None:
    folder = Folder()
    folder.fold([event(1, 1), event(1, 2)])
    assert short(folder.fold([event(2, 4, base=1, value=2)])) == ["to 1", "gap 2", "4=2"]


def test_entries_that_come_twice_are_skipped() -> None:
    folder = Folder()
    folder.fold([event(1, 1), event(1, 2)])
    assert short(folder.fold([event(1, 1), event(1, 2), event(1, 3)])) == ["3=1"]


def test_end_without_events_of_its_attempt_drops_the_events_of_the_attempt_before() -> None:
    folder = Folder()
    folder.fold([event(1, 1), event(1, 2)])
    assert short(folder.fold([end(2, 1, base=1)])) == ["to 1"]
    assert folder.ended == "completed"


def test_end_tells_how_many_events_are_missing_before_it() -> None:
    assert short(Folder().fold([event(1, 1), end(1, 4)])) == ["1=1", "gap 3"]


def test_output_that_continues_after_its_end_has_not_ended() -> None:
    folder = Folder()
    assert short(folder.fold([event(1, 1), end(1, 1, status="failed"), event(2, 2, base=1)])) == ["1=1", "2=1"]
    assert folder.ended is None


def test_settled_reader_gets_only_what_a_checkpoint_covers() -> None:
    folder = Folder(settled=True)
    assert short(folder.fold([event(1, number) for number in range(1, 5)])) == []
    assert short(folder.fold([settled(1, 4, 2)])) == ["1=1", "2=1"]
    assert short(folder.fold([event(2, 3, base=2, value=7), end(2, 3, base=2)])) == ["3=7"]


@pytest.mark.parametrize("status", ["failed", "cancelled", "dead"])
def test_settled_reader_gets_no_rest_of_a_run_that_did_not_complete(status: str) -> None:
    folder = Folder(settled=True)
    assert short(folder.fold([event(1, 1), event(1, 2), settled(1, 2, 1), end(1, 2, status=status)])) == ["1=1"]


def test_settled_reader_is_told_about_missing_events_when_they_are_covered() -> None:
    folder = Folder(settled=True)
    assert short(folder.fold([event(1, 5)])) == []
    assert short(folder.fold([settled(1, 5, 3)])) == ["gap 3"]
    assert short(folder.fold([settled(1, 5, 5, mark=2)])) == ["gap 1", "5=1"]


def test_settled_reader_holds_a_bounded_number_of_events() -> None:
    folder = Folder(settled=True)
    count = 3 * MOST_UNSETTLED
    folder.fold([event(1, number) for number in range(1, count + 1)])
    items = folder.fold([settled(1, count, count)])
    assert len(items) <= MOST_UNSETTLED + 1
    assert isinstance(items[0], Gap)
    assert items[0].count + len(items) - 1 == count


@pytest.mark.parametrize("id", ["", "1", "-", "1-", "-1", "x-1", "1-2-3", "１-1", "9" * 30 + "-1"])
def test_text_that_is_no_id_is_refused(id: str) -> None:
    with pytest.raises(BadOption):
        Folder(id)


@pytest.mark.parametrize("fields", [[], [b"e"], [b"e0"], [b"ex", b"1 1"], [b"e0", b"\xc1"], [b"s0", b"x"]])
def test_damaged_entry_is_reported(fields: list[bytes]) -> None:
    with pytest.raises(Unreadable):
        Folder().fold([(b"1-16", fields)])


# ---- random histories


@dataclass
class History:
    """A run with several attempts, as the scripts would write its output. `text` is the final text."""

    seed: int
    entries: list[Entry] = field(default_factory=list)
    text: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        dice = random.Random(self.seed)
        saved: list[int] = []
        last = (0, 0, list[int](), False)
        covered = 0  # the last event that a checkpoint has covered
        for epoch in range(1, dice.randint(2, 6)):
            text, base, wrote, marks = list(saved), len(saved), False, 0
            for _ in range(dice.randint(0, 6)):
                text.append(dice.randrange(100))
                self.entries.append(event(epoch, len(text), base, text[-1]))
                wrote, marks = True, 0
                if dice.random() < 0.4:
                    saved = text[: dice.randint(len(saved), len(text))]
                    if len(saved) > covered:
                        covered, marks = len(saved), marks + 1
                        self.entries.append(settled(epoch, len(text), covered, base, marks))
            last = (epoch, base, text, wrote)
        epoch, base, text, wrote = last
        self.text = text if wrote else list(saved)
        self.entries.append(end(epoch, len(self.text), len(self.text) if not wrote else base))


def apply(text: list[int], items: list[Item]) -> None:
    for item in items:
        if isinstance(item, Rewind):
            assert item.to < len(text)
            del text[item.to :]
        else:
            assert isinstance(item, Event)
            assert item.number == len(text) + 1
            text.append(item.value)


@pytest.mark.parametrize("is_settled", [False, True], ids=["plain", "settled"])
@pytest.mark.parametrize("seed", range(300))
def test_every_reader_ends_with_the_final_text(seed: int, is_settled: bool) -> None:
    history, dice = History(seed), random.Random(seed)
    folder, text, after = Folder(settled=is_settled), list[int](), None
    place = 0
    while place < len(history.entries):
        page = history.entries[place : place + dice.randint(1, 5)]
        items = folder.fold(page)
        if is_settled:
            assert not [item for item in items if not isinstance(item, Event)]
        place += len(page)
        cut = dice.randint(0, len(items)) if dice.random() < 0.3 else None
        apply(text, items[:cut])
        if items[:cut]:
            after = items[:cut][-1].id
        if cut is not None:  # the reader goes away, and comes back with the id of the last item that it has got
            folder = Folder(after, is_settled)
            place = 0 if after is None else next(n for n, one in enumerate(history.entries) if _later(one, after))
    assert text == history.text
    assert folder.ended == "completed"


def _later(one: Entry, after: str) -> bool:
    return tuple(map(int, one[0].split(b"-"))) > tuple(map(int, after.split("-")))
