"""Bugs that the simulation must find: the file, the original text, the changed text, and a seed that notices the bug.

A seed is listed here if `scripts/faults plant` has seen it notice the bug. The other bugs are still to be proven. What
a seed does also depends on the product's code: after a change, a different seed may be the first to notice.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.store.generated_lua import expand

LUA = "coordinator/store/lua/"


class Bug(NamedTuple):
    name: str
    path: str
    old: str
    new: str
    seed: int | None = None  # a seed that notices the bug; None if no such seed is known yet

    def plant(self, text: str) -> str:
        """Return the script with the bug, if the text of the bug is part of it."""
        return text.replace(expand(self.old), expand(self.new))


BUGS = (
    Bug(
        "a save needs no token",
        LUA + "attempts/checkpoint.lua",
        "if owner_token ~= token then",
        "if owner_token == nil then",
        seed=0,
    ),
    Bug(
        "an ending needs no token",
        LUA + "shared/run.lua",
        "if run.token and run.token == token then",
        "if run.token then",
        seed=62,
    ),
    Bug(
        "a repeated ending is not recognised",
        LUA + "shared/run.lua",
        "if run.last and string.sub(run.last, 1, #before) == before then",
        "if false then",
        seed=18,
    ),
    Bug(
        "a repeated claim takes more runs",
        LUA + "attempts/claim.lua",
        "if number == last_claim then",
        "if false then",
        seed=13,
    ),
    Bug(
        "an abandoned claim still takes runs",
        LUA + "attempts/claim.lua",
        "tonumber(number) <= tonumber(floor or 0)",
        "false",
    ),
    Bug(
        "a claim of an expired worker takes runs",
        LUA + "attempts/claim.lua",
        "if clock >= tonumber(deadline) then",
        "if false then",
        seed=46,
    ),
    Bug("a recovered worker claims", LUA + "attempts/claim.lua", "if condemned or not last_claim", "if not last_claim"),
    Bug(
        "a recovered worker's lease is renewed",
        LUA + "workers/heartbeat.lua",
        "if known.condemned then return { 'gone' } end\n",
        "",
        seed=6,
    ),
    Bug(
        "a recovered worker joins again",
        LUA + "workers/join.lua",
        "if condemned or (known_lease",
        "if (known_lease",
        seed=24,
    ),
    Bug(
        "recover does not check the lease again",
        LUA + "coordinators/recover.lua",
        "if tonumber(deadline) > clock then return { 'alive' } end",
        "",
        seed=130,
    ),
    Bug(
        "recovery never pauses",
        LUA + "coordinators/recover.lua",
        "if is_spared(worker, deadline, clock, hold_until) then return { 'held' } end",
        "",
        seed=173,
    ),
    Bug(
        "judge ignores the pause of recovery",
        LUA + "shared/judge.lua",
        "if unwatched or most then",
        "if false then",
        seed=1,
    ),
    Bug(
        "a repeated enqueue creates a second run",
        LUA + "runs/enqueue.lua",
        "local status = redis.pcall('HGET', key, 'status')",
        "local status = false",
        seed=9,
    ),
    Bug(
        "a key names no run",
        LUA + "runs/enqueue.lua",
        "if not named then return nil end",
        "if true then return nil end",
        seed=14,
    ),
    Bug(
        "a release omits the newest state",
        LUA + "shared/endings.lua",
        "apply_delta(run.plan, now)\n",
        "\n",
        seed=0,
    ),
    Bug(
        "a save ignores the sequence number",
        LUA + "shared/checkpoint.lua",
        "if head and seq < head.seq then return nil, 'old' end",
        "",
        seed=72,
    ),
    Bug(
        "a save is appended whatever its base",
        LUA + "shared/checkpoint.lua",
        "'messages_key(id, int(plan.generation)), int(plan.base), plan.chunk)'"[1:-1],
        "messages_key(id, int(plan.generation)), int(head.length), plan.chunk)",
        seed=28,
    ),
    Bug(
        "a repeated revive adds another life",
        LUA + "runs/revive.lua",
        "'revival') == operation then",
        "'revival') == nil then",
        seed=246,
    ),
    Bug("a retry forgets the route", LUA + "shared/endings.lua", "    add_to_delayed(id, due)\n", "\n", seed=0),
    Bug("a recovered run keeps its epoch", LUA + "shared/recover.lua", "advance_epoch(counters, now)\n", "\n", seed=1),
    Bug(
        "leave forgets the owned runs",
        LUA + "workers/leave.lua",
        "if #owned > 0 or redis.call('SCARD', owned_key(worker)) > 0 then",
        "if false then",
        seed=11,
    ),
    Bug(
        "an ended run stays in the list of live runs",
        LUA + "shared/endings.lua",
        "write('SREM', live_key(), id)\n",
        "\n",
        seed=0,
    ),
    Bug(
        "a checkpoint outlives its run",
        LUA + "shared/endings.lua",
        "redis.call('PEXPIRE', ckpt_key(id), int(kept))\n",
        "\n",
        seed=3,
    ),
    Bug(
        "a completed run keeps its key for ever",
        LUA + "shared/endings.lua",
        "if run.once then expire_once_key(id, run, kept) end\n",
        "\n",
        seed=0,
    ),
    Bug(
        "a suspend does not check its condition again",
        LUA + "attempts/suspend.lua",
        "local reason = find_reason(id, parsed, clock)",
        "local reason = nil",
        seed=62,
    ),
    Bug(
        "a suspend forgets a requested cancel",
        LUA + "attempts/suspend.lua",
        "local ended = end_if_requested(id, run, counters, clock, 'cancelled')\nif ended then\n  remember_call(id, token, 's",
        "local ended = nil\nif ended then\n  remember_call(id, token, 's",
    ),
    Bug(
        "a repeated suspend is fenced",
        LUA + "attempts/suspend.lua",
        "remember_call(id, token, 'suspend', 'waiting')\n",
        "\n",
    ),
    Bug(
        "a suspend omits the deadline",
        LUA + "attempts/suspend.lua",
        "add_to_waiting(id, parsed, clock)",
        "add_to_waiting(id, {}, clock)",
        seed=1,
    ),
    Bug(
        "a stale worker receives",
        LUA + "attempts/receive.lua",
        "if owner_token ~= token then return { 'fenced' } end",
        "if not owner_token then return { 'fenced' } end",
        seed=30,
    ),
    Bug(
        "a key does not name one signal",
        LUA + "runs/send.lua",
        "if key ~= '' and redis.call('ZSCORE', signal_keys_key(id), key) then return repeat_send('found') end",
        "",
        seed=3,
    ),
    Bug(
        "a repeated send stores a second signal",
        LUA + "runs/send.lua",
        "if redis.call('ZSCORE', signal_operations_key(id), operation) then return repeat_send('sent') end\nif key ~= ''",
        "if key == nil",
        seed=1,
    ),
    Bug(
        "a signal does not wake the run that waits for it",
        LUA + "runs/send.lua",
        "if reason then wake_run(id, counters, reason) end",
        "",
        seed=2,
    ),
    Bug(
        "a woken run stays in the set of waiting runs",
        LUA + "shared/waiting.lua",
        "redis.call('ZREM', waiting_key(), id)\n",
        "\n",
        seed=1,
    ),
    Bug(
        "a save omits the counts of received signals",
        LUA + "shared/checkpoint.lua",
        "redis.call('HSET', ckpt, 'more', more)\n",
        "\n",
        seed=1,
    ),
    Bug(
        "signals stay behind when their run completes",
        LUA + "runs/send.lua",
        "if not string.find(beside, 's', 1, true) then redis.call('HSET', run_key(id), 'beside', beside .. 's') end\n",
        "\n",
        seed=4,
    ),
    Bug(
        "pauses of recovery that follow each other protect a lost worker forever",
        LUA + "shared/judge.lua",
        "  return not till or now < till\n",
        "  return true\n",
        seed=84,
    ),
)
