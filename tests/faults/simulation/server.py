"""A real server under virtual time: every script is the real one, with a prelude that provides time and expires keys.

In the text of the script, `redis` is shadowed. TIME returns the virtual time, which is passed as a second key. TTLs are
kept in a list of our own, and each script first deletes the expired keys. Random choices of the server follow from the
virtual time. Everything else is the server's own.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hiredis

from coordinator.store.script import Script

Words = Sequence[bytes]
Plant = Callable[[Script], str]  # returns the text of a script, perhaps with a bug

HEAD = """
local server, ends, clock_ms = redis, '{sim}:ends', tonumber(KEYS[2])
for _, key in ipairs(server.call('ZRANGEBYSCORE', ends, '-inf', KEYS[2], 'LIMIT', 0, 1000)) do
  server.call('ZREM', ends, key)
  if server.call('PTTL', key) > 0 then server.call('DEL', key) end
end
local ours = {}
function ours.TIME()
  return { string.format('%.0f', math.floor(clock_ms / 1000)), string.format('%.0f', clock_ms % 1000 * 1000) }
end
function ours.PEXPIRE(ask, key, value)
  if tonumber(value) <= 0 or tonumber(value) >= 1e15 then return ask('PEXPIRE', key, value) end
  local done = ask('PEXPIRE', key, 2592000000)
  if done == 1 then server.call('ZADD', ends, string.format('%.0f', clock_ms + value), key) end
  return done
end
function ours.SET(ask, key, value, ...)
  local how, ms = ...
  if how ~= 'PX' then return ask('SET', key, value, ...) end
  server.call('ZADD', ends, string.format('%.0f', clock_ms + ms), key)
  return ask('SET', key, value, 'PX', 2592000000)
end
function ours.SRANDMEMBER(ask, key, most)
  local members, some = ask('SMEMBERS', key), {}
  table.sort(members)
  for i = 1, math.min(#members, tonumber(most)) do some[i] = members[(clock_ms + i) % #members + 1] end
  return some
end
function ours.XADD(ask, key, ...)
  local given = { ... }
  for i = 1, #given do
    if given[i] == '*' then given[i] = string.format('%.0f-*', clock_ms) end
  end
  return ask('XADD', key, unpack(given))
end
local function under_virtual_time(ask)
  return function(command, ...)
    local own = ours[command]
    if own then return own(ask, ...) end
    return ask(command, ...)
  end
end
local redis = { call = under_virtual_time(server.call), pcall = under_virtual_time(server.pcall) }
"""

# The fields of runs that the watcher's rules are about, read after each call.
LOOK = """#!lua
local seen = {}
for i = 1, #ARGV do
  local run = redis.call('HMGET', KEYS[1] .. ':run:' .. ARGV[i], 'status', 'token', 'counters', 'result', 'error', 'cancel')
  local group
  run[8], run[9], run[12], group = unpack(redis.call('HMGET', KEYS[1] .. ':run:' .. ARGV[i], 'wait', 'spend', 'held', 'group'))
  run[10] = group and redis.call('SISMEMBER', KEYS[1] .. ':admitted:' .. group, ARGV[i]) or 0
  run[11] = group and redis.call('ZSCORE', KEYS[1] .. ':line:' .. group, ARGV[i]) or ''
  run[7] = redis.call('HGET', KEYS[1] .. ':ckpt:' .. ARGV[i], 'head')
  seen[i] = run
end
return seen
"""
SWEEP = "#!lua\n" + HEAD + "return 'ok'"


def with_head(text: str) -> str:
    shebang, at, rest = text.split("\n", 2)
    return f"{shebang}\n{at}{HEAD}{rest}"


def sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RealServer:
    """One connection to a real server, which is kept from seed to seed: commands there, replies back."""

    def __init__(self, path: Path, scripts: Sequence[Script], plant: Plant) -> None:
        """Connect and load the scripts. `plant` may put a bug into a script's text; callers still use the hash of the original."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()
        self.scripts = {script.sha.encode(): script for script in scripts}
        texts = {script.sha.encode(): with_head(plant(script)) for script in scripts}
        self._ours = {known: sha(text).encode() for known, text in texts.items()}
        self._known: dict[tuple[bytes, ...], Any] = {}
        self.look, self._sweep = sha(LOOK).encode(), sha(SWEEP).encode()
        for reply in self.ask([[b"SCRIPT", b"LOAD", text.encode()] for text in (*texts.values(), LOOK, SWEEP)]):
            if isinstance(reply, Exception):
                raise reply

    def ask(self, commands: Sequence[Words]) -> list[Any]:
        self._socket.sendall(b"".join(hiredis.pack_command(tuple(command)) for command in commands))  # type: ignore[arg-type]
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 20))
            else:
                replies.append(reply)
        return replies

    def at_time(self, command: Words, now_ms: int) -> list[Words]:
        """Return a command for a given time: a script gets its prelude; before any other command, expired keys are deleted."""
        now = b"%d" % now_ms
        if command[0] == b"EVALSHA":
            return [[b"EVALSHA", self._ours[bytes(command[1])], b"2", command[3], now, *command[4:]]]
        return [[b"EVALSHA", self._sweep, b"2", b"-", now], command]

    def known(self, command: Words) -> Any:
        """Return the answer to a question about the server itself, which is asked once."""
        question = tuple(command)
        if question not in self._known:
            (self._known[question],) = self.ask([question])
        return self._known[question]

    def empty(self) -> None:
        self.ask([[b"FLUSHDB", b"SYNC"]])

    def close(self) -> None:
        self._socket.close()
