"""Bugs for the simulation to find: in which file, what stands there, what it becomes, and a seed that notices it.

A seed that is known is one that was seen to: `scripts/faults plant`. The others are still to be proved. What a seed does
follows from the code, too: after a change of the product another one may be the first to notice.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.store.script import with_keys

LUA = "coordinator/store/lua/"


class Bug(NamedTuple):
    name: str
    path: str
    old: str
    new: str
    seed: int | None = None  # one that notices it; None where none was seen to yet

    def plant(self, text: str) -> str:
        """A script with the bug in it, where the place of the bug is part of it."""
        return text.replace(with_keys(self.old), with_keys(self.new))


BUGS = (
    Bug(
        "a save needs no token", LUA + "checkpoint.lua", "if not run or run[1] ~= token then", "if not run then", seed=0
    ),
    Bug(
        "an ending needs no token",
        LUA + "_run.lua",
        "if run.token and run.token == token then",
        "if run.token then",
        seed=62,
    ),
    Bug(
        "an ending is not remembered",
        LUA + "_run.lua",
        "if run.last and string.sub(run.last, 1, #before) == before then",
        "if false then",
        seed=18,
    ),
    Bug(
        "a claim that is sent again takes more",
        LUA + "claim.lua",
        "if number == known[2] then",
        "if false then",
        seed=13,
    ),
    Bug(
        "a claim that was given up still takes",
        LUA + "claim.lua",
        "tonumber(number) <= tonumber(known[3] or 0)",
        "false",
    ),
    Bug(
        "a claim of an expired worker takes",
        LUA + "claim.lua",
        "if clock >= tonumber(deadline) then",
        "if false then",
        seed=46,
    ),
    Bug("a condemned worker claims", LUA + "claim.lua", "if known[1] or not known[2]", "if not known[2]"),
    Bug("a condemned worker is renewed", LUA + "heartbeat.lua", "if known[1] or not redis", "if not redis", seed=6),
    Bug("a condemned worker joins", LUA + "join.lua", "if known[2] or (known[1]", "if (known[1]", seed=24),
    Bug(
        "recover does not look at the lease again",
        LUA + "recover.lua",
        "if tonumber(deadline) > clock then return { 'alive' } end",
        "",
        seed=130,
    ),
    Bug("there is no hold", LUA + "recover.lua", "if clock < hold_until then return { 'held' } end", "", seed=173),
    Bug(
        "judging knows no hold",
        LUA + "_judge.lua",
        "if gap < 0 or gap > 3 * tick or most then",
        "if false then",
        seed=4,
    ),
    Bug(
        "an enqueue that is sent again creates again",
        LUA + "enqueue.lua",
        "local there = redis.pcall('HGET', key, 'status')",
        "local there = false",
        seed=9,
    ),
    Bug(
        "a key names nobody",
        LUA + "enqueue.lua",
        "if not named then return nil end",
        "if true then return nil end",
        seed=14,
    ),
    Bug("a release leaves the newest state behind", LUA + "_endings.lua", "apply_delta(run.plan, now)\n", "\n", seed=0),
    Bug(
        "the sequence of saves is ignored",
        LUA + "_checkpoint.lua",
        "if head and seq < head.seq then return nil, 'old' end",
        "",
        seed=72,
    ),
    Bug(
        "a save is appended whatever its base",
        LUA + "_checkpoint.lua",
        "'messages_key(id, int(plan.generation)), int(plan.base), plan.chunk)'"[1:-1],
        "messages_key(id, int(plan.generation)), int(head.length), plan.chunk)",
        seed=28,
    ),
    Bug(
        "a revive that is sent again revives again",
        LUA + "revive.lua",
        "'revival') == operation then",
        "'revival') == nil then",
        seed=246,
    ),
    Bug("a retry forgets the line", LUA + "_endings.lua", "    into_delayed(id, due)\n", "\n", seed=0),
    Bug("what is taken away keeps its epoch", LUA + "_recover.lua", "grow_epoch(counters, now)\n", "\n", seed=0),
    Bug(
        "leaving forgets what is owned",
        LUA + "leave.lua",
        "if #owned > 0 or redis.call('SCARD', owned_key(worker)) > 0 then",
        "if false then",
        seed=11,
    ),
    Bug("what has ended stays alive", LUA + "_endings.lua", "write('SREM', live_key(), id)\n", "\n", seed=0),
    Bug(
        "a checkpoint outlives its run",
        LUA + "_endings.lua",
        "redis.call('PEXPIRE', ckpt_key(id), int(kept))\n",
        "\n",
        seed=3,
    ),
    Bug(
        "a completed run keeps its key for ever",
        LUA + "_endings.lua",
        "if run.once then free_once(id, run, kept) end\n",
        "\n",
        seed=0,
    ),
)
