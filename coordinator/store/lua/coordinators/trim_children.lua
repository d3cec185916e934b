-- trim_children: remove the ids of deleted runs from the sets of their parents' children, and answer further candidates.
-- Protects: the id of a deleted run stays in its parent's set while the run has children, so that a cancel of the tree finds them.
-- Role: coordinator
-- Keys: children, namespace, parents, run
-- ARGV: now, most
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   most: the largest number of children to examine in this call
-- ITEM: parent, id
--   parent: id of a run
--   id: a child of this parent, answered as a candidate by an earlier call, that has no children in any partition
-- Flags: allow-oom
-- Uses: time
-- Unconfirmed: entries that are left are removed at the next tick
-- Answers: ok
--   ok: with the number of children that were removed, and the candidates, as parent and child in turn
local clock = server_ms(now)
local removed, candidates, left = 0, {}, tonumber(most)
local function is_gone(id) return redis.call('EXISTS', run_key(id)) == 0 end

for i = 1, items do
  local parent, id = item(i)
  local reply = is_gone(id) and redis.pcall('SREM', children_key(parent), id)
  if type(reply) == 'number' then removed = removed + reply end
  if redis.call('EXISTS', children_key(parent)) == 0 then redis.pcall('ZREM', parents_key(), parent) end
end

-- Examine some children of a run, chosen at random. Return the time of the next examination; nil if no child is left.
local function look_at(parent)
  local key = children_key(parent)
  local ids = redis.pcall('SRANDMEMBER', key, left)
  if type(ids[1]) ~= 'string' then return nil end
  left = left - #ids
  local gone, found, open, last = 0, #candidates, false, 0
  for i = 1, #ids do
    local ttl = redis.call('PTTL', run_key(ids[i]))
    open, last = open or ttl == -1, math.max(last, ttl)
    if ttl == -2 then
      gone = gone + 1
      if redis.call('EXISTS', children_key(ids[i])) == 0 then
        candidates[#candidates + 1] = parent
        candidates[#candidates + 1] = ids[i]
      end
    end
  end
  if gone < #ids then redis.call('PEXPIRE', key, CHILDREN_MS) end
  if redis.call('SCARD', key) > #ids then
    -- The set has more children than were examined. They are probably like these: if most are gone, examine more immediately.
    return (#candidates - found) * 2 > #ids and clock or clock + CHILDREN_LOOK_MS
  end
  if open then return clock + CHILDREN_LOOK_MS end
  -- The id of a deleted child is removed once its own children are gone, which may be soon.
  return clock + (gone > 0 and CHILDREN_LOOK_MS / 10 or math.min(last + 1000, CHILDREN_MS))
end

local parents = redis.pcall('ZRANGEBYSCORE', parents_key(), '-inf', int(clock), 'LIMIT', 0, most)
for i = 1, #parents do
  if left <= 0 then break end
  local again = look_at(parents[i])
  if again then redis.call('ZADD', parents_key(), int(again), parents[i]) else redis.call('ZREM', parents_key(), parents[i]) end
end
return { 'ok', removed, candidates }
