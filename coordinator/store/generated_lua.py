"""The Lua code that is generated from Python: constants, keys, and readers and writers of the stored formats.

A script uses the generated names like its own functions. `expand` replaces constants, keys and readers by their code where a script
uses them. `FUNCTIONS` holds the few names that stay functions. The server creates every function of a script again for each call,
so code in place takes the server less time than a function.

    QUEUED, STRIKES, BELL_MS                    a constant: a status, a limit
    is_ended(status)                            a condition
    run_key(id)                                 a key, see keys.py
    local run = read_named(run_key(id), 'status', 'token')            a table with these fields; nil if the key is not a hash
    local status, token = read_fields(run_key(id), 'status', 'token')  the values; nil if the key is not a hash
    read_counters(text), write_counters(table)  numbers that share a field, see formats.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest

from coordinator.encoding.spec import SPEC_FIELDS
from coordinator.errors import BadCall
from coordinator.model import limits
from coordinator.model.policies.budget import TOPIC as GRANT_TOPIC
from coordinator.model.run import ENDED, Status
from coordinator.model.run_id import ID_DIGITS
from coordinator.store import formats
from coordinator.store.keys import Keys

_STRINGS_AND_COMMENTS = re.compile(r"'[^'\n]*'|--.*")


# ---- constants -------------------------------------------------------------------------------------------------------


def _literal(value: object) -> str:
    """Return a Python value as Lua source."""
    match value:
        case Mapping():
            return f"{{ {', '.join(f'{name} = {_literal(item)}' for name, item in value.items())} }}"
        case tuple() | list():
            return f"{{ {', '.join(map(_literal, value))} }}"
        case str():
            return f"'{value}'"
        case _:
            return str(value)


def _numbers(count: int, *, signed: Sequence[int] = ()) -> list[str]:
    """Return a Lua pattern for each of `count` whole numbers. The numbers at the positions `signed` may be negative."""
    return ["%-?%d+" if place in signed else "%d+" for place in range(count)]


_SCORE = formats.COUNTERS.index("score")
_COUNTER_PATTERNS = _numbers(len(formats.COUNTERS), signed=[_SCORE])
_TO_EPOCH = formats.COUNTERS.index("epoch") + 1

CONSTANTS: Mapping[str, str] = {
    **{status.name: _literal(str(status)) for status in Status},
    **{name: _literal(value) for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)},
    "ENDED_STATUSES": _literal([str(status) for status in Status if status in ENDED]),
    "SPEC_FIELDS": ", ".join(map(_literal, SPEC_FIELDS)),  # a list of arguments
    "SPEC_PIECES": str(len(SPEC_FIELDS)),
    "DELTA_NAMES": ", ".join(formats.DELTA),  # a list of local variables, in the stored order
    "DELTA_PARTS": str(len(formats.DELTA)),
    "EMPTY_HEAD": _literal(dict.fromkeys(formats.HEAD, 0)),
    "JOINED_PATTERN": "'^(%S+) (%d+) (%S+) (%d+)$'",  # parent, life, base, index
    "GRANT_TOPIC": _literal(GRANT_TOPIC),
    "ID_DIGITS": _literal(ID_DIGITS),
    "ID_PAIRS": _literal("".join(a + b for a in ID_DIGITS for b in ID_DIGITS)),
    "ROUTE_PATTERN": "'^[^:]+:.+@%d+$'",
    "ROUTE_PARTS": "'^([^:]+):(.+)@(%d+)$'",  # queue, kind, schema
    # life, attempt and epoch as they are, and the other counters as one text
    "COUNTERS_TO_EPOCH": "'^"
    + " ".join(f"({one})" for one in _COUNTER_PATTERNS[:_TO_EPOCH])
    + f" ({' '.join(_COUNTER_PATTERNS[_TO_EPOCH:])})$'",
}


# ---- expressions: keys and conditions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LuaExpression:
    """A Lua expression with parameters. `expand` writes it in place of each call whose arguments are plain names.

    Attributes:
        name: The name by which scripts call it.
        parameters: The names of its parameters.
        write: Returns the expression as Lua source, for the given arguments.
    """

    name: str
    parameters: tuple[str, ...]
    write: Callable[[Sequence[str]], str]

    @property
    def source(self) -> str:
        """The expression as the source of a Lua function, for scripts that call it with arguments other than plain names."""
        return f"local function {self.name}({', '.join(self.parameters)}) return {self.of(self.parameters)[1:-1]} end"

    def of(self, arguments: Sequence[str]) -> str:
        """Return the expression with these arguments, in parentheses.

        Raises:
            BadCall: The number of arguments is wrong.
        """
        if len(arguments) != len(self.parameters):
            raise BadCall(
                f"{self.name} takes {', '.join(self.parameters) or 'no arguments'}; it was given {', '.join(arguments)}"
            )
        return f"({self.write(arguments)})"


@cache
def lua_keys() -> dict[str, LuaExpression]:
    """Return a Lua expression for each method of `Keys`, by its name in Lua: `run_key` for the method `run`, for example."""
    found = {}
    keys, mark = Keys("-", 0), "\0"
    for method, function in inspect.getmembers(Keys, inspect.isfunction):
        if method.startswith("_"):
            continue
        parameters = tuple(inspect.signature(function).parameters)[1:]
        built = function(keys, *(mark for _ in parameters)).removeprefix(keys.at)
        name = f"{method}_key"
        found[name] = LuaExpression(name, parameters, _key_writer(tuple(built.split(mark))))
    return found


def _key_writer(texts: tuple[str, ...]) -> Callable[[Sequence[str]], str]:
    """Return a function that puts arguments between the constant texts of a key. `TAG` is the partition's hash tag."""
    pieces = [_literal(text) for text in texts]

    def write(arguments: Sequence[str]) -> str:
        woven = [piece for pair in zip_longest(pieces, arguments) for piece in pair if piece not in (None, "''")]
        return " .. ".join(["TAG", *woven])

    return write


def _is_ended(arguments: Sequence[str]) -> str:
    return " or ".join(f"{arguments[0]} == {_literal(str(status))}" for status in Status if status in ENDED)


def _is_open(arguments: Sequence[str]) -> str:
    return " or ".join(f"{arguments[0]} == {_literal(str(status))}" for status in Status if status not in ENDED)


def _has_schema(arguments: Sequence[str]) -> str:
    return f"not string.find({arguments[0]}, '@0', -2, true)"


def _initial_counters(arguments: Sequence[str]) -> str:
    """Return the Lua expression for the stored counters of a new run: life 1, the given score and time of creation, otherwise 0."""
    given = {"life": "1", "score": None, "created": None}
    score, created = arguments
    before = " ".join(given.get(name) or "0" for name in formats.COUNTERS[:_SCORE])
    return f"'{before} ' .. {score} .. ' ' .. {created}"


@cache
def expressions() -> dict[str, LuaExpression]:
    """Return all Lua expressions that scripts may use, by name."""
    return {
        **lua_keys(),
        "is_ended": LuaExpression("is_ended", ("status",), _is_ended),
        "is_open": LuaExpression("is_open", ("status",), _is_open),
        "has_schema": LuaExpression("has_schema", ("route",), _has_schema),
        "initial_counters": LuaExpression("initial_counters", ("score", "created"), _initial_counters),
    }


# ---- functions: readers and writers of numbers that share a field --------------------------------------------------------


def _reader(
    name: str, numbers: Sequence[str], patterns: Sequence[str], *, zero_if_unreadable: bool = False, most: int = 0
) -> str:
    """Return the Lua function that reads numbers from one text. Numbers above `most` are read as `most`, unless it is 0."""
    names = ", ".join(numbers)
    pattern = "'^" + " ".join(f"({one})" for one in patterns) + "$'"
    if zero_if_unreadable:
        read = f"math.min(tonumber(%s) or 0, {most})" if most else "tonumber(%s) or 0"
        values = ", ".join(f"{one} = {read % one}" for one in numbers)
        return f"local function {name}(text)\n  local {names} = string.match(text or '', {pattern})\n  return {{ {values} }}\nend"
    values = ", ".join(f"{one} = tonumber({one})" for one in numbers)
    return (
        f"local function {name}(text)\n  if not text then return nil end\n  local {names} = string.match(text, {pattern})\n"
        f"  if not {numbers[0]} then return nil end\n  return {{ {values} }}\nend"
    )


def _writer(name: str, numbers: Sequence[str]) -> str:
    return (
        f"local function {name}(of) return string.format('{' '.join(['%.0f'] * len(numbers))}', "
        f"{', '.join(f'of.{one}' for one in numbers)}) end"
    )


FUNCTIONS = "\n".join(
    [
        f"local RETENTION_MS = {_literal(limits.RETENTION_MS)}",
        # The fields of a hash as values. The key may have another type, which must not stop a script in the middle.
        "local function read_fields(key, ...)\n  local values = redis.pcall('HMGET', key, ...)\n"
        "  if not values.err then return unpack(values) end\nend",
        _reader("read_counters", formats.COUNTERS, _COUNTER_PATTERNS),
        _writer("write_counters", formats.COUNTERS),
        _reader("parse_head", formats.HEAD, _numbers(len(formats.HEAD))),
        _writer("write_head", formats.HEAD),
        _reader("read_spent", formats.SPENT, _numbers(len(formats.SPENT)), zero_if_unreadable=True),
        _writer("write_spent", formats.SPENT),
        _reader(
            "read_spend", formats.SPEND, _numbers(len(formats.SPEND)), zero_if_unreadable=True, most=limits.FAR_FUTURE
        ),
        _writer("write_spend", formats.SPEND),
        _writer("write_attempt", formats.ATTEMPT),
        _reader("read_output", formats.OUTPUT, _numbers(len(formats.OUTPUT)), zero_if_unreadable=True),
        _writer("write_output_numbers", formats.OUTPUT),
        "",
    ]
)


# ---- expanding a script --------------------------------------------------------------------------------------------------

_ARGUMENTS = r"\s*\(?(\w+)_key\([^()]*\)\)?,\s*('[^()]*')\s*"
_NAMED = re.compile(rf"local (\w+) = read_named\(({_ARGUMENTS})\)")
_READ = re.compile(rf"\bread_fields\({_ARGUMENTS}\)")
_PLAIN = r"[\w.]+(?:\[[\w .+*-]+\])?"  # an argument that may be written out: a name, a field, an element


def expand(body: str) -> str:
    """Return Lua source in which generated constants, readers and expressions are replaced by their code.

    Raises:
        BadCall: If the source reads a field that formats.py does not declare.
    """
    for found in _READ.finditer(body):
        _check_fields(found[1], found[2])
    return _write_out(_NAMED.sub(_read_named, body))


def _read_named(found: re.Match[str]) -> str:
    variable, arguments, family, listed = found.groups()
    names = _check_fields(family, listed)
    fields = ", ".join(f"{name} = {variable}[{place}]" for place, name in enumerate(names, 1))
    return f"local {variable} = redis.pcall('HMGET', {arguments})\n{variable} = not {variable}.err and {{ {fields} }} or nil"


def _check_fields(family: str, listed: str) -> list[str]:
    names = re.findall(r"'([^']*)'", listed)
    if unknown := set(names) - set(formats.FIELDS[family]):
        raise BadCall(f"{', '.join(sorted(unknown))} is not declared as a field of {family} (see store/formats.py)")
    return names


def _write_out(body: str) -> str:
    # A shared part may define a function of the same name, which then means other keys: see lua/shared/_record.lua.
    known = {name: one for name, one in expressions().items() if f"function {name}(" not in body}
    called = re.compile(rf"\b({'|'.join(known)})\(((?:{_PLAIN}(?:, {_PLAIN})*)?)\)")
    constant = re.compile(rf"(?<![\w.])(?:{'|'.join(CONSTANTS)})\b")

    def write_call(found: re.Match[str]) -> str:
        return known[found[1]].of(found[2].split(", ") if found[2] else [])

    def write_code(code: str) -> str:
        """Return code outside strings, with constants and expressions replaced."""
        code = called.sub(write_call, code)
        return "'".join(
            part if place % 2 else constant.sub(lambda found: CONSTANTS[found[0]], part)
            for place, part in enumerate(code.split("'"))
        )

    lines = (line.partition("--") for line in body.split("\n"))
    return "\n".join(f"{write_code(code)}{dashes}{comment}" for code, dashes, comment in lines)


def names_in(source: str) -> set[str]:
    """Return all identifiers and keywords that occur in Lua source outside strings and comments."""
    return set(re.findall(r"[A-Za-z_]\w*", _STRINGS_AND_COMMENTS.sub("", source)))


def functions_for(body: str) -> list[str]:
    """Return the source of a Lua function for each `LuaExpression` that an expanded script still calls by its name.

    `expand` does not replace a call that has an argument other than a plain name.
    """
    names = names_in(body)
    return [one.source for one in expressions().values() if one.name in names]
