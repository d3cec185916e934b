"""Lua scripts and their calls. Each script is a file under lua/, and its head is checked against every call.

The head of a file names the arguments of the script, which become local variables, and describes the script:

    -- Role: producer, worker  the roles that call it: its rights on the server follow from this (see rights.py)
    -- Keys: run, ready        the keys that it may touch
    -- ARGV: now, worker       local variables with these names
    -- ITEM: id, token         a list of items: `items` is their number, and `item(i)` returns the values of one
    -- EACH: id, token         the same; the answer has a part for each item, so that calls of several callers can be merged
    -- Flags: allow-oom        what the server may let the script do
    -- Uses: time, run         parts of lua/shared, in this order
    -- Moves: queued -> running
    -- Answers: ok, fenced     the words that it may answer
    -- Unconfirmed: why        its writes may be lost in a failover, and its trip does not wait for replicas

Every script is given one key, the hash tag of its partition, and builds all other keys from it. Constants, keys and readers of
stored formats are generated from Python: see generated_lua.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from coordinator.errors import BadCall
from coordinator.store.generated_lua import FUNCTIONS, expand, functions_for, names_in
from coordinator.store.keys import Tag

# No float: hiredis 3.5 crashes the process if a signal handler raises while it packs one.
Argument = str | bytes | int

# Arguments that are whole numbers in every script. Any other value is refused before the first line, because a number that can't be
# read in the middle of a script would leave half of its writes undone.
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
        "turn",
        "inline",
        "budget",
        "room",
        "pause",
    }
)
_HEAD = re.compile(r"^-- (Role|Keys|ARGV|ITEM|EACH|Flags|Uses|Moves|Answers|Unconfirmed): (.*)$", re.M)
# Functions of shared parts that few runs need. The functions that only they call are created when they are called.
RARE = frozenset({"expire_beside", "write_output", "enter"})
_SHARED = "shared"  # the folder of the parts that scripts share


def _find_files(folder: Traversable) -> Iterator[tuple[str, str, Traversable]]:
    """Yield (folder, name, file) for each Lua file in the sub-folders."""
    for family in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if family.is_dir():
            for file in sorted(family.iterdir(), key=lambda entry: entry.name):
                if file.name.endswith(".lua"):
                    yield family.name, file.name.removesuffix(".lua"), file


@cache
def _files() -> tuple[dict[str, Traversable], dict[str, Traversable]]:
    """Return the files of the scripts and of the shared parts, by name."""
    scripts: dict[str, Traversable] = {}
    parts: dict[str, Traversable] = {}
    for family, name, file in _find_files(files("coordinator.store") / "lua"):
        (parts if family == _SHARED else scripts)[name] = file
    return scripts, parts


def script_names() -> tuple[str, ...]:
    """Return the names of all scripts: the Lua files outside lua/shared."""
    return tuple(_files()[0])


def read_part(name: str) -> str:
    """Return the source of a part in lua/shared."""
    return _files()[1][name].read_text()


def _select_used(shared: str, source: str) -> str:
    """Return the source of those pieces of the shared parts that a script uses, directly or through another piece.

    A piece is a function or a variable: it begins with `local` at the start of a line, and precedes the pieces that use it. The
    server creates every function of a script again for each call, and unused functions took half of the time of a short script.

    Args:
        shared: The source of the shared parts.
        source: The source of the script.
    """
    words, kept = names_in(source), list[str]()
    for piece in reversed(re.split(r"^(?=local )", shared, flags=re.M)):
        if words & _defined(piece):
            kept.insert(0, piece.rstrip())
            words |= names_in(piece)
    return "\n".join(_nest_rare(kept, source))


def _nest_rare(pieces: list[str], source: str) -> list[str]:
    """Move the pieces that only a rare function uses into that function. The server then creates them only if it is called.

    Most runs have no signals and no children, so their calls need none of these pieces. A call for many runs creates them once.
    """
    for rare in [piece for piece in pieces if _defined(piece) & RARE]:
        inner = pieces[: pieces.index(rare)]
        while True:
            outer = [piece for piece in pieces if piece not in inner and piece is not rare]
            used = names_in(source).union(*map(names_in, outer))
            fewer = [piece for piece in inner if not _defined(piece) & used]
            if fewer == inner:
                break
            inner = fewer
        created = _create_once(rare, inner)
        pieces = [created if piece is rare else piece for piece in pieces if piece not in inner]
    return pieces


def _create_once(rare: str, inner: list[str]) -> str:
    """Return the Lua source of a rare function with pieces inside, which are created when the function is first called."""
    first, _, rest = rare.partition("\n")
    found = re.fullmatch(r"local function (\w+)\((.*)\)", first)
    assert found is not None, f"a rare function begins with a line of its own: {first}"
    name, parameters = found.groups()
    return "\n".join(
        [
            f"local {name}, created_{name}",
            f"{name} = function({parameters})",
            f"if not created_{name} then",
            *inner,
            f"created_{name} = function({parameters})",
            rest,
            "end",
            f"return created_{name}({parameters})",
            "end",
        ]
    )


def _defined(piece: str) -> set[str]:
    found = re.match(r"local (?:function (\w+)|(\w+(?:, \w+)*))", piece)
    return set() if found is None else set((found[1] or found[2]).split(", "))


def _without_comment_lines(source: str) -> str:
    return re.sub(r"^ *--.*\n", "", source, flags=re.M)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, eq=False)
class Script:
    """One Lua script, loaded from the file of this name."""

    name: str

    @cached_property
    def source(self) -> str:
        """The text of the Lua file."""
        return _files()[0][self.name].read_text()

    @cached_property
    def head(self) -> dict[str, tuple[str, ...]]:
        """The fields of the file's head, each with the list of its values."""
        found: dict[str, tuple[str, ...]] = {}
        for field, text in _HEAD.findall(self.source):
            found[field] = (*found.get(field, ()), *_names(text))
        return found

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles that call the script, see rights.py."""
        return self.head.get("Role", ())

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments that every call gives once."""
        return self.head.get("ARGV", ())

    @cached_property
    def item_fields(self) -> tuple[str, ...]:
        """The names of the arguments of one item; empty if the script takes no list of items."""
        return self.head.get("EACH", ()) or self.head.get("ITEM", ())

    @cached_property
    def merges(self) -> bool:
        """Return True if calls of several callers may be merged into one: the script answers each item separately."""
        return "EACH" in self.head

    @cached_property
    def changes(self) -> bool:
        """Return True if the script may write. A script that only reads has the flag no-writes."""
        return "no-writes" not in self.head.get("Flags", ())

    @cached_property
    def confirmed(self) -> bool:
        """Return True if a trip with this script waits for replicas, in a namespace in which replicas confirm writes."""
        return self.changes and "Unconfirmed" not in self.head

    @cached_property
    def body(self) -> str:
        """The source of the file without comment lines, after the shared pieces and generated functions that it uses."""
        shared = "\n".join([FUNCTIONS, *map(read_part, self.head.get("Uses", ()))])
        source = _without_comment_lines(self.source)
        return f"{_select_used(_without_comment_lines(shared), source)}\n{source}"

    @cached_property
    def text(self) -> str:
        """The script as it is sent to the server."""
        body = expand(self.body)
        shebang = "#!lua" + (f" flags={','.join(self.head['Flags'])}" if "Flags" in self.head else "")
        return "\n".join([shebang, "local TAG = KEYS[1]", *self._bindings(), *functions_for(body), body])

    def _bindings(self) -> list[str]:
        """Return the Lua lines that check the arguments and make them local variables."""
        fixed = len(self.arguments)
        lines = [*self._guards(), *(f"local {argument} = ARGV[{i}]" for i, argument in enumerate(self.arguments, 1))]
        if width := len(self.item_fields):
            values = ", ".join(f"ARGV[base + {i}]" for i in range(1, width + 1))
            lines.append(f"local items = (#ARGV - {fixed}) / {width}")
            lines.append(f"local function item(i) local base = {fixed} + (i - 1) * {width}; return {values} end")
        return lines

    def _guards(self) -> list[str]:
        """Return the Lua line that refuses a call with too few arguments, an incomplete item, or text instead of a number."""
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
        """The script without its first line, which fakeredis can't compile."""
        return self.text.split("\n", 1)[1]

    @cached_property
    def sha(self) -> str:
        """The SHA-1 digest by which EVALSHA names the script."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def sha_without_shebang(self) -> str:
        """The SHA-1 digest of the script without its shebang line, for fakeredis."""
        return hashlib.sha1(self.text_without_shebang.encode(), usedforsecurity=False).hexdigest()

    def call(self, at: str, items: Sequence[tuple[Argument, ...]] = (), **given: Argument) -> Call:
        """Return a call of the script with these arguments.

        Args:
            at: The hash tag of the partition.
            items: The items, each in the order of the head.
            **given: The other arguments by name.

        Raises:
            BadCall: If an argument is missing or unknown, or the script takes no items.
        """
        values = self._in_order(self.arguments, given)
        if items and not self.item_fields:
            raise BadCall(f"{self.name} takes no items")
        return Call(self, at, values, tuple(items), str(given["id"]) if "id" in given else None)

    def each(self, at: str, run: str, fixed: Mapping[str, Argument], **given: Argument) -> Call:
        """Return a call with one item about one run, which may be merged with other calls of the same script.

        Args:
            at: The hash tag of the partition.
            run: The id of the run.
            fixed: The arguments that the call gives once, by name.
            **given: The arguments of the item, by name.

        Raises:
            BadCall: An argument is missing or unknown.
        """
        item = self._in_order(self.item_fields, given)
        return Call(self, at, self._in_order(self.arguments, fixed), (item,), run)

    def _in_order(self, names: tuple[str, ...], given: Mapping[str, Argument]) -> tuple[Argument, ...]:
        # The look-up finds a missing name, and the length finds an unknown one. This method is called for every run, so it must be
        # fast.
        try:
            values = tuple([given[name] for name in names])
        except KeyError:
            values = ()
        if len(given) != len(names) or len(values) != len(names):
            raise BadCall(f"{self.name} takes {', '.join(names)}; it was given {', '.join(given)}")
        return values


@dataclass(slots=True, eq=False)  # not frozen, because that takes six times as long to create, for every run
class Call:
    """A call of a script. A call is never changed after it was made.

    Attributes:
        script: The script.
        at: The hash tag of the partition.
        fixed: The arguments that the call gives once.
        items: The items, for a script that takes a list of them.
        run: The id of the run that the call is about, if it is about one.
        fail_fast: True if the call fails immediately when its node can't be reached and it was certainly not sent.
    """

    script: Script
    at: str
    fixed: tuple[Argument, ...]
    items: tuple[tuple[Argument, ...], ...] = ()
    run: str | None = None
    fail_fast: bool = False

    @property
    def merges(self) -> bool:
        """Return True if the call may be merged with other calls into one command. A call about several runs is not merged."""
        return self.script.merges and self.run is not None

    @property
    def changes(self) -> bool:
        """Return True if the call may write."""
        return self.script.changes

    @property
    def replicas(self) -> int:
        """The number of replicas that must confirm the writes of the call before the caller gets the answer."""
        return self.at.replicas if isinstance(self.at, Tag) and self.script.confirmed else 0

    @property
    def size(self) -> int:
        """The approximate size of the call in bytes. Only arguments of type bytes are counted; all others count as 200 bytes."""
        size = 200
        for values in (self.fixed, *self.items):
            for value in values:
                if type(value) is bytes:
                    size += len(value)
        return size


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """A server command that only reads, such as HGETALL. It has the attributes of a `Call` that the transport needs.

    Attributes:
        at: The hash tag of the partition.
        arguments: The command and its arguments.
        run: None, because a command is not about one run.
        fail_fast: True if the command fails immediately when its node can't be reached.
        replicas: 0, because a command writes nothing.
        changes: False.
    """

    at: str
    arguments: tuple[Argument, ...]
    run: None = None
    fail_fast: bool = False
    replicas: int = 0
    changes: bool = False

    @property
    def size(self) -> int:
        """The approximate size of the command in bytes."""
        return 100


Request = Call | Command


def fail_fast(call: Call) -> Call:
    """Return the same call with `fail_fast` set: the transport does not retry it if it was certainly not sent."""
    return replace(call, fail_fast=True)


def read(at: str, *arguments: Argument) -> Command:
    """Return a request for a server command that only reads, such as `GET`.

    Args:
        at: The hash tag of the partition.
        *arguments: The name of the command and its arguments.
    """
    return Command(at, arguments)
