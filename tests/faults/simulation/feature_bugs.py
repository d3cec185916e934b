"""Bugs in children, output, effects, budgets, groups and limits that the simulation must find. See bugs.py."""

from __future__ import annotations

from tests.faults.simulation.bug import LUA, Bug

CHILDREN = (
    Bug(
        "a child that failed does not tell its parent",
        LUA + "shared/children.lua",
        "record_result(parent, life, base, index, status .. ' ' .. payload, now)",
        "if status == COMPLETED then record_result(parent, life, base, index, status .. ' ' .. payload, now) end",
        seed=6,
    ),
    Bug(
        "the last ending of a step wakes no parent",
        LUA + "shared/children.lua",
        "redis.pcall('ZADD', waiting_key(), 'XX', int(now), parent)",
        "redis.pcall('ZCARD', waiting_key())",
        seed=6,
    ),
    Bug(
        "a wake-up needs one child more",
        LUA + "shared/children.lua",
        "if need and ended + 1 >= tonumber(need) then",
        "if need and ended >= tonumber(need) then",
        seed=6,
    ),
    Bug(
        "a suspend does not see that the children have ended",
        LUA + "shared/waiting.lua",
        "if not ended or tonumber(ended) >= need then return 'children' end",
        "if not ended then return 'children' end",
        seed=6,
    ),
    Bug(
        "the order of the endings is not stored",
        LUA + "shared/children.lua",
        "local results, order = results_key(parent), int(ended + 1)",
        "local results, order = results_key(parent), int(spawned - ended)",
        seed=6,
    ),
    Bug(
        "the ending of a child is not counted",
        LUA + "shared/children.lua",
        "redis.call('HSET', joins_key(parent), base, int(spawned) .. ' ' .. order)",
        "redis.call('HSET', joins_key(parent), base, int(spawned) .. ' ' .. int(ended))",
        seed=6,
    ),
    Bug(
        "children that are dropped are never cancelled",
        LUA + "shared/children.lua",
        "redis.pcall('ZADD', parting_key(), 'NX', 0, base .. ' ' .. int(spawned))",
        "redis.pcall('ZCARD', parting_key())",
        seed=31,
    ),
    Bug(
        "a late enqueue creates a child for an ended parent",
        LUA + "runs/enqueue.lua",
        "if not spawned or tonumber(index) >= spawned or not is_open(status) or string.match(counters or '', '^%d+') ~= life then",
        "if false then",
        seed=36761,
    ),
    Bug(
        "a cancelled tree still gets children",
        LUA + "runs/enqueue.lua",
        "if not answer and parent ~= '' and is_blocked(named or parent) then",
        "if false then",
    ),
    Bug(
        "a stale parent collects",
        LUA + "attempts/collect.lua",
        "if owner_token ~= token then return { 'fenced' } end",
        "if not owner_token then return { 'fenced' } end",
        seed=13162,
    ),
    Bug(
        "a stale parent announces children",
        LUA + "attempts/join_children.lua",
        "if owner_token ~= token then return { 'fenced' } end",
        "if not owner_token then return { 'fenced' } end",
        seed=2637,
    ),
)

OUTPUT = (
    Bug(
        "a stale worker emits",
        LUA + "attempts/emit.lua",
        "  if owner_token ~= token then\n    answers[i] = 'fenced'\n  else\n    answers[i] = write_output(",
        "  if not owner_token then\n    answers[i] = 'fenced'\n  else\n    answers[i] = write_output(",
        seed=1309,
    ),
    Bug(
        "a new attempt continues after events that no checkpoint covers",
        LUA + "shared/output.lua",
        "output.epoch, output.base, output.position, output.marks = epoch, base, base, 0",
        "output.epoch, output.base, output.marks = epoch, base, 0",
        seed=10,
    ),
    Bug(
        "an event that is sent again stops the events after it",
        LUA + "shared/output.lua",
        "if number > output.position then",
        "if true then",
        seed=44,
    ),
    Bug(
        "events count as settled before their checkpoint",
        LUA + "shared/output.lua",
        "  if settled > output.settled and output.marks",
        "  settled = output.position\n  if settled > output.settled and output.marks",
        seed=10,
    ),
    Bug(
        "a save omits its events",
        LUA + "attempts/checkpoint.lua",
        "if plan and plan.output then write_output(id, token, plan.output, clock) end",
        "",
        seed=10,
    ),
    Bug(
        "a release omits its events",
        LUA + "shared/endings.lua",
        "    if run.plan.output then write_output(id, token, run.plan.output, now) end\n",
        "",
        seed=303,
    ),
    Bug(
        "a completion omits its last events",
        LUA + "attempts/complete.lua",
        "if #rest > 1 and write_output(id, token, string.sub(rest, 2), clock) then",
        "if false then",
        seed=231,
    ),
    Bug(
        "an output gets no end",
        LUA + "shared/endings.lua",
        "      end_output(id, run, status)\n",
        "",
        seed=12,
    ),
    Bug(
        "the end of an output forgets the base of its attempt",
        LUA + "shared/output.lua",
        "  local base = read_emitted(id)\n",
        "  local base = output.position\n",
    ),
)

EFFECTS = (
    Bug(
        "a save forgets effects",
        LUA + "shared/checkpoint.lua",
        "redis.call('HSET', effect and effects_key(plan.id) or ckpt, effect or plan.phases[i], plan.phases[i + 1])",
        "if not effect then redis.call('HSET', ckpt, plan.phases[i], plan.phases[i + 1]) end",
        seed=9,
    ),
    Bug(
        "a claim omits the effects",
        LUA + "attempts/claim.lua",
        "has_effects and redis.call('HGETALL', effects_key(id)) or nil",
        "nil",
        seed=84,
    ),
    Bug(
        "a revive from the start drops the effects",
        LUA + "runs/revive.lua",
        "if forget == 'all' then redis.call('UNLINK', effects_key(id)) end",
        "if forget == 'all' or from_start == '1' then redis.call('UNLINK', effects_key(id)); note_no_effects(id) end",
        seed=2179,
    ),
    Bug(
        "a run does not note that it has effects",
        LUA + "attempts/claim.lua",
        "local has_effects = knows_effects(beside)",
        "local has_effects = false",
        seed=84,
    ),
)

BUDGETS = (
    Bug(
        "an attempt's spending replaces that of earlier attempts",
        LUA + "shared/spend.lua",
        "spend.settled_usd, spend.settled_tokens, spend.settled_requests = sum_spend(spend)",
        "local _ = sum_spend(spend)",
        seed=23,
    ),
    Bug(
        "a repeated report counts twice",
        LUA + "shared/spend.lua",
        "spend.tokens, spend.requests = math.max(spend.tokens, tokens), math.max(spend.requests, requests)",
        "spend.tokens, spend.requests = spend.tokens + tokens, spend.requests + requests",
        seed=22,
    ),
    Bug(
        "a late report takes spending back",
        LUA + "shared/spend.lua",
        "spend.tokens, spend.requests = math.max(spend.tokens, tokens), math.max(spend.requests, requests)",
        "spend.tokens, spend.requests = tokens, requests",
        seed=113,
    ),
    Bug(
        "a stale worker reports spending",
        LUA + "attempts/spend.lua",
        "if owner_token ~= token then return { 'fenced' } end",
        "if not owner_token then return { 'fenced' } end",
        seed=1094,
    ),
    Bug(
        "a child's spending is added to its parent without a mark",
        LUA + "shared/spend.lua",
        "    redis.call('HSET', run_key(id), 'spend', write_spend(spend))\n    store_spend(parent",
        "    store_spend(parent",
    ),
    Bug(
        "a child's spending does not reach its parent",
        LUA + "shared/children.lua",
        "if spend then roll_up_spend(id, parent) end",
        "",
        seed=23,
    ),
    Bug(
        "a child's spending is lost if its parent has ended",
        LUA + "shared/spend.lua",
        "if not is_open(status) and not is_ended(status) then return end",
        "if not is_open(status) then return end",
        seed=4379,
    ),
)

GROUPS = (
    Bug(
        "a group admits runs above its limit",
        LUA + "shared/groups.lua",
        "if not limit or type(count) ~= 'number' or count >= limit then return 0, true end",
        "limit, count = 9, 0",
        seed=7,
    ),
    Bug(
        "a run is queued without a place in its group",
        LUA + "shared/groups.lua",
        "if redis.pcall('SISMEMBER', admitted_key(group), id) == 1 then",
        "if true then",
        seed=7,
    ),
    Bug(
        "a place that becomes free is not given to the next run",
        LUA + "shared/groups.lua",
        "  if redis.pcall('SREM', admitted_key(group), id) == 1 then\n    fill(group, clock)\n",
        "  if redis.pcall('SREM', admitted_key(group), id) == 1 then\n    redis.pcall('SREM', groups_key(), group)\n",
        seed=61,
    ),
    Bug(
        "an ended run keeps its place",
        LUA + "shared/endings.lua",
        "    if group then leave_group(id, group, now) end\n",
        "",
        seed=4,
    ),
    Bug(
        "a waiting run keeps its place",
        LUA + "attempts/suspend.lua",
        "  if group then leave_group(id, group, clock) end\n",
        "",
        seed=4,
    ),
    Bug(
        "an admitted run stays in the line",
        LUA + "shared/groups.lua",
        "  redis.call('ZREM', line_key(group), id)\n  return true\n",
        "  return true\n",
        seed=7,
    ),
    Bug(
        "a woken run does not store when it enters the line",
        LUA + "shared/groups.lua",
        "  if clock - counters.score % PRIORITY_STEP > OLDER_MS then redis.call('HSET', run_key(id), 'held', int(clock)) end\n",
        "",
        seed=75,
    ),
    Bug(
        "a limited kind gets a run without a group",
        LUA + "runs/enqueue.lua",
        "if string.find(limited, ' ' .. kind .. ' ', 1, true) then answers[i] = { 'ungrouped', id } end",
        "",
        seed=7,
    ),
)

RATES = (
    Bug(
        "any number of calls is under way",
        LUA + "rates/acquire.lua",
        "return left, bucket.held + rank >= rate.at_once",
        "return left, false",
        seed=1,
    ),
    Bug(
        "a call uses no tokens",
        LUA + "rates/acquire.lua",
        "if rate.speed > 0 then bucket.level = bucket.level + cost end",
        "",
        seed=1,
    ),
    Bug(
        "a late request of an ended call starts again",
        LUA + "rates/acquire.lua",
        "if not answer and not turn and number <= before then answer = { 'old' } end",
        "",
        seed=1720,
    ),
    Bug(
        "calls start during a back-off",
        LUA + "rates/acquire.lua",
        "local left = math.max(0, bucket.resumes - clock)",
        "local left = 0",
        seed=1,
    ),
    Bug(
        "a call that has ended keeps its place",
        LUA + "rates/finish.lua",
        "    redis.call('ZREM', holders_key(name), request)\n",
        "",
        seed=1,
    ),
    Bug(
        "the places of lost workers are never free again",
        LUA + "rates/acquire.lua",
        "if not known[other] then redis.call('ZREM', holders_key(name), request) end",
        "",
        seed=1,
    ),
    Bug(
        "a call that cost more than it reserved is not settled",
        LUA + "rates/finish.lua",
        "if cost and rate.speed > 0 then bucket.level = math.max(0, bucket.level + cost - reserved) end",
        "if cost and cost < reserved and rate.speed > 0 then bucket.level = math.max(0, bucket.level + cost - reserved) end",
        seed=1,
    ),
    Bug(
        "a request that waits for its turn is overtaken for ever",
        LUA + "rates/acquire.lua",
        "ahead = first and math.max(0, (tonumber(turn) or bucket.ticket) - first) or 0",
        "ahead = 1000",
        seed=1,
    ),
)

FEATURE_BUGS = tuple(
    bug._replace(family=family)
    for family, bugs in {
        "children": CHILDREN,
        "output": OUTPUT,
        "effects": EFFECTS,
        "budgets": BUDGETS,
        "groups": GROUPS,
        "rates": RATES,
    }.items()
    for bug in bugs
)
