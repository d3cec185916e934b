"""Inputs and results that are not plain data are converted by the handler's annotations."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, NewType, TypedDict
from uuid import UUID

import pydantic
import pytest

from coordinator.errors import NotPlain, Refused, Unreadable
from workers import AsyncRun, Registry, Run, testing
from workers.handlers.conversion import conversions

runs = Registry()
ORDER_ID = UUID("12345678-1234-5678-1234-567812345678")


class Size(StrEnum):
    SMALL = "small"


class Level(Enum):
    HIGH = 3


@dataclass
class Line:
    name: str
    price: Decimal


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: UUID
    day: date
    lines: list[Line]
    size: Size = pydantic.Field(alias="orderSize")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal(0))


class Receipt(pydantic.BaseModel):
    order: UUID
    total: Decimal
    tags: set[str]


class PlainDict(TypedDict):
    name: str


class RichDict(TypedDict):
    day: date


OrderId = NewType("OrderId", UUID)


@runs.handler
def ship(run: Run, order: Order, after: timedelta = timedelta(0), level: Level | None = None) -> Receipt:
    assert isinstance(order, Order)
    assert all(isinstance(line, Line) for line in order.lines)
    total = run.phase("total", lambda: str(order.total))
    return Receipt(order=order.id, total=Decimal(total), tags={str(after), str(level)})


@runs.handler
async def book(run: AsyncRun, order: Order) -> Line:
    await run.flush()
    return order.lines[0]


@runs.handler
def plain(run: Run, at: datetime, names: list[str], text: str | None = None, other: Any = None) -> dict[str, int]:
    return {}


ORDER = Order.model_validate(
    {"id": ORDER_ID, "day": date(2026, 2, 28), "lines": [Line("tea", Decimal("2.50"))], "orderSize": Size.SMALL}
)


def test_rich_inputs_become_plain_data_and_the_same_objects_again():
    inputs = ship.inputs(ORDER, after=timedelta(hours=1), level=Level.HIGH)
    assert inputs.values == {
        "order": {
            "id": str(ORDER_ID),
            "day": "2026-02-28",
            "lines": [{"name": "tea", "price": "2.50"}],
            "size": "small",
        },
        "after": "PT1H",
        "level": 3,
    }
    assert ship.arguments(dict(inputs.values)) == {"order": ORDER, "after": timedelta(hours=1), "level": Level.HIGH}


def test_a_result_comes_back_as_the_annotated_object_through_every_crash():
    matrix = testing.crash_matrix(ship.inputs(ORDER))
    assert matrix.result == Receipt(order=ORDER_ID, total=Decimal("2.50"), tags={"0:00:00", "None"})
    assert testing.crash_matrix(book.inputs(ORDER)).result == Line("tea", Decimal("2.50"))


def test_plain_forms_are_accepted_where_an_object_is_annotated():
    given: Any = {"id": str(ORDER_ID), "day": "2026-02-28", "lines": [], "orderSize": "small"}
    stored = {"id": str(ORDER_ID), "day": "2026-02-28", "lines": [], "size": "small"}
    assert ship.inputs(given).values == {"order": stored}


def test_values_of_plain_annotations_are_left_alone():
    values = {"at": datetime(2026, 1, 1, tzinfo=UTC), "names": ("a", "b"), "text": 5}
    inputs = plain.inputs(**values)  # type: ignore[arg-type]
    assert inputs.values == values
    assert plain.arguments(values) is values
    assert plain.read_result is None


def test_an_input_that_does_not_fit_its_annotation_is_refused_where_it_is_enqueued():
    given: Any = {"id": "no", "day": "2026-02-28", "lines": [], "orderSize": "small"}
    with pytest.raises(Refused, match=r"input 'order' of kind 'ship' does not fit .*Order: id: .*UUID"):
        ship.inputs(given)


def test_stored_inputs_that_do_not_fit_are_unreadable():
    with pytest.raises(Unreadable, match="input 'order' of kind 'ship'"):
        ship.arguments({"order": {"id": 5}})


def test_a_result_that_does_not_fit_its_annotation_is_not_plain():
    with pytest.raises(NotPlain, match="the result of kind 'ship' does not fit"):
        ship.plain_result("nothing")


def test_without_pydantic_the_error_names_the_way_out(monkeypatch):
    fresh = Registry()

    @fresh.handler
    def look(run: Run, id: UUID) -> None: ...

    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(NotPlain, match=r"install run-coordinator\[pydantic\], or annotate and pass plain data"):
        look.inputs(ORDER_ID)


def test_pydantic_is_not_imported_for_plain_handlers():
    import subprocess

    code = (
        "import sys\nfrom workers import Registry, Run\nruns = Registry()\n"
        "def f(run: Run, n: int) -> int: return n\nruns.handler(f).inputs(1)\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("hint", "rich"),
    [
        (int, False), (datetime, False), (datetime | None, False), (list[dict[str, Any]], False), (PlainDict, False),
        (object, False), ("Unknown", False), (tuple[int, ...], False), (Any, False), (bytes | str, False),
        (date, True), (list[date], True), (RichDict, True), (OrderId, True), (Annotated[UUID, "meta"], True),
        (Size, True), (dict[str, Line], True), (set[int], True), (Order | None, True),
    ],
)  # fmt: skip
def test_only_annotations_with_a_rich_part_are_converted(hint, rich):
    def function(run: Run, value) -> None: ...

    function.__annotations__["value"] = hint
    assert ("value" in conversions(function, "k")) is rich


def test_bytes_that_are_not_text_in_a_model_are_refused():
    @dataclass
    class Blob:
        data: bytes

    def keep(run: Run, blob) -> None: ...

    keep.__annotations__["blob"] = Blob
    with pytest.raises(NotPlain, match="can't be stored"):
        Registry[Any]().handler(keep).inputs(Blob(b"\xff\xfe"))


def test_a_handler_without_a_cut_fails_the_crash_matrix():
    with pytest.raises(AssertionError, match="the handler of 'plain' has no cut"):
        testing.crash_matrix(plain.inputs(datetime(2026, 1, 1, tzinfo=UTC), []))
