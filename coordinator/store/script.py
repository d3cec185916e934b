"""A Lua script and the calls of it. Scripts are files under lua/, and their heads are checked against every call.

A head names what it is given, and the names are bound for it:
    -- ARGV: now, worker       locals of those names
    -- ITEM: id, token         a list of such items: `items` is their number, `item(i)` gives the i-th
    -- EACH: id, token         the same, and the answer has a part for each: calls of many callers are merged
    -- Flags: allow-oom        what the server may let it do
    -- Uses: time, run         shared parts (_time.lua, …), in that order
    -- Moves: queued -> running
    -- Answers: ok, fenced     the words it may answer
    -- Unconfirmed: why        what it writes may be lost in a failover: it does not wait for replicas
Every script gets one key, the partition's tag, and builds the others from it with the functions of keys.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files

from coordinator.errors import BadCall
from coordinator.store.keys import Tag, lua_keys

Argument = str | bytes | int | float

# Arguments that are whole numbers, wherever they stand: anything else is refused before the first line, since one that turns out
# to be none in the middle of a script would leave half of its work behind.
NUMBERS = frozenset(
    {
        "lease",
        "tick",
        "batch",
        "most",
        "ttl",
        "cap",
        "delay",
        "grace",
        "number",
        "floor",
        "inline",
        "budget",
        "room",
    }
)
_CODELESS = re.compile(r"'[^'\n]*'|--.*")  # texts and comments
_HEAD = re.compile(r"^-- (ARGV|ITEM|EACH|Flags|Uses|Moves|Answers|Unconfirmed): (.*)$", re.M)


def _read(name: str) -> str:
    return (files("coordinator.store") / "lua" / f"{name}.lua").read_text()


def _used(shared: str, source: str) -> str:
    """Of the shared parts what a script uses, directly or not: a server makes every function anew for each call, which was half of
    what a short script cost it. Each begins with `local` at the start of a line, and stands before who uses it."""
    words, kept = _words(source), list[str]()
    for piece in reversed(re.split(r"^(?=local )", re.sub(r"^--.*\n", "", shared, flags=re.M), flags=re.M)):
        if words & _defined(piece):
            kept.insert(0, piece.rstrip())
            words |= _words(piece)
    return "\n".join(kept)


def with_keys(body: str) -> str:
    """Each key is written out where it is built of plain names. Functions for all of them, made anew for each call, were a sixth of
    what an enqueue cost; those stay that are handed on as values, or given more than names."""
    named = r"[\w.]+(?:\[[\w .+*-]+\])?"
    names = "|".join(
        name for name in lua_keys() if f"function {name}(" not in body
    )  # a shared part may mean other keys by it
    called = re.compile(rf"\b({names})\(((?:{named}(?:, {named})*)?)\)")

    def written_out(found: re.Match[str]) -> str:
        return lua_keys()[found[1]].of(found[2].split(", ") if found[2] else [])

    lines = (line.partition("--") for line in body.split("\n"))
    return "\n".join(f"{called.sub(written_out, code)}{dashes}{comment}" for code, dashes, comment in lines)


def _words(source: str) -> set[str]:
    """The names in it, without those in texts and comments."""
    return set(re.findall(r"[A-Za-z_]\w*", _CODELESS.sub("", source)))


def _defined(piece: str) -> set[str]:
    found = re.match(r"local (?:function (\w+)|(\w+(?:, \w+)*))", piece)
    return set() if found is None else set((found[1] or found[2]).split(", "))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, eq=False)
class Script:
    """One operation, loaded from its file."""

    name: str

    @cached_property
    def source(self) -> str:
        return _read(self.name)

    @cached_property
    def head(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for field, text in _HEAD.findall(self.source):
            found[field] = (*found.get(field, ()), *_names(text))
        return found

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return self.head.get("ARGV", ())

    @cached_property
    def item_fields(self) -> tuple[str, ...]:
        return self.head.get("EACH", ()) or self.head.get("ITEM", ())

    @cached_property
    def merges(self) -> bool:
        return "EACH" in self.head

    @cached_property
    def changes(self) -> bool:
        return "no-writes" not in self.head.get("Flags", ())

    @cached_property
    def confirmed(self) -> bool:
        """Whether its answer is a promise: where a namespace has replicas that must confirm, its trip waits for them."""
        return self.changes and "Unconfirmed" not in self.head

    @cached_property
    def text(self) -> str:
        """What the server gets: flags, names, of the shared parts what it uses, the script."""
        shared = "\n".join(_read(f"_{part}") for part in self.head.get("Uses", ()))
        body = with_keys(f"{_used(shared, self.source)}\n{self.source}")
        keys = [key.source for key in lua_keys().values() if re.search(rf"\b{key.name}\b", _CODELESS.sub("", body))]
        shebang = "#!lua" + (f" flags={','.join(self.head['Flags'])}" if "Flags" in self.head else "")
        return "\n".join([shebang, "local TAG = KEYS[1]", *self._bindings(), *keys, body])

    def _bindings(self) -> list[str]:
        fixed = len(self.arguments)
        lines = [*self._guards(), *(f"local {argument} = ARGV[{i}]" for i, argument in enumerate(self.arguments, 1))]
        if width := len(self.item_fields):
            values = ", ".join(f"ARGV[base + {i}]" for i in range(1, width + 1))
            lines.append(f"local items = (#ARGV - {fixed}) / {width}")
            lines.append(f"local function item(i) local base = {fixed} + (i - 1) * {width}; return {values} end")
        return lines

    def _guards(self) -> list[str]:
        """What refuses a call that no plan makes: too few arguments, half an item, a number that is none."""
        fixed, width = len(self.arguments), len(self.item_fields)
        odd = f"#ARGV < {fixed} or (#ARGV - {fixed}) % {width} ~= 0" if width else f"#ARGV ~= {fixed}"
        wrong = [odd]
        for i, argument in enumerate(self.arguments, 1):
            if argument in NUMBERS:
                wrong.append(f"not string.find(ARGV[{i}], '^%d+$') or #ARGV[{i}] > 15")
            elif argument == "now":
                wrong.append(f"not string.find(ARGV[{i}], '^%d*$') or #ARGV[{i}] > 15")
            elif argument == "jitter":
                wrong.append(f"not tonumber(ARGV[{i}]) or not (tonumber(ARGV[{i}]) >= 0 and tonumber(ARGV[{i}]) <= 1)")
        return [
            f"if {' or '.join(wrong)} then return redis.error_reply('ERR {self.name} was called with wrong arguments') end"
        ]

    @cached_property
    def text_without_shebang(self) -> str:
        """For fakeredis, which can't compile the first line."""
        return self.text.split("\n", 1)[1]

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def sha_without_shebang(self) -> str:
        return hashlib.sha1(self.text_without_shebang.encode(), usedforsecurity=False).hexdigest()

    def call(self, at: str, items: Sequence[tuple[Argument, ...]] = (), **given: Argument) -> Call:
        """A call with everything by name; a list of items in the order of the head."""
        values = self._in_order(self.arguments, given)
        if items and not self.item_fields:
            raise BadCall(f"{self.name} takes no items")
        return Call(self, at, values, tuple(items), str(given["id"]) if "id" in given else None)

    def each(self, at: str, run: str, fixed: Mapping[str, Argument], **given: Argument) -> Call:
        """A call about one run that may be merged with others of its kind."""
        item = self._in_order(self.item_fields, given)
        return Call(self, at, self._in_order(self.arguments, fixed), (item,), run)

    def _in_order(self, names: tuple[str, ...], given: Mapping[str, Argument]) -> tuple[Argument, ...]:
        # a look-up tells whether a name is missing, the length whether one is too many: this is called for every run
        try:
            values = tuple([given[name] for name in names])
        except KeyError:
            values = ()
        if len(given) != len(names) or len(values) != len(names):
            raise BadCall(f"{self.name} wants {', '.join(names)}; it was given {', '.join(given)}")
        return values


@dataclass(slots=True, eq=False)  # nobody changes one; frozen, it would take six times as long to make, for every run
class Call:
    """A script with what it is called with. `run` is the run it is about, where it is about one. With `fail_fast`, the
    transport does not retry a call that it surely did not send: the caller has other work than to wait for that node."""

    script: Script
    at: str
    fixed: tuple[Argument, ...]
    items: tuple[tuple[Argument, ...], ...] = ()
    run: str | None = None
    fail_fast: bool = False

    @property
    def merges(self) -> bool:
        """Whether it may become one command with others: many in one call already are."""
        return self.script.merges and self.run is not None

    @property
    def changes(self) -> bool:
        """Whether it may write: what only looks can't be carried out without being answered."""
        return self.script.changes

    @property
    def replicas(self) -> int:
        """How many replicas must have what it writes before its answer counts."""
        return self.at.replicas if isinstance(self.at, Tag) and self.script.confirmed else 0

    @property
    def size(self) -> int:
        """About how many bytes it takes: what can be large is bytes, the rest is counted in the lump."""
        size = 200
        for values in (self.fixed, *self.items):
            for value in values:
                if type(value) is bytes:
                    size += len(value)
        return size


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """A plain command, for reading. `at` says which partition it is for."""

    at: str
    arguments: tuple[Argument, ...]
    run: None = None
    fail_fast: bool = False
    replicas: int = 0
    changes: bool = False

    @property
    def size(self) -> int:
        return 100


Request = Call | Command


def fail_fast(call: Call) -> Call:
    """Return the same call with `fail_fast` set: the transport does not retry it if it was surely not sent."""
    return replace(call, fail_fast=True)


def read(at: str, *arguments: Argument) -> Command:
    """A plain reading command."""
    return Command(at, arguments)
