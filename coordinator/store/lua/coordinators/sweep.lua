-- sweep: give the free places of groups to the runs in their lines. Other scripts do this whenever a run leaves its place; this
-- script does it after a change of a limit, and after a repair.
-- Protects: a limit that was raised takes effect within a second; a place whose run is gone is given to the next run.
-- Role: coordinator
-- Keys: admitted, aside, bell, coordinator_bell, groups, limits, line, namespace, pace, paced, ready, routes, run
-- Keys: starting, suspect, suspect_bell
-- ARGV: now, cursor, most, turn
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   cursor: the cursor that the last call answered; 0: begin with the first group
--   most: about how many groups to examine in this call
--   turn: number of the sweep; each sweep examines the places of one group in SWEEP_TURNS, and the next sweep examines other groups
-- Flags: allow-oom
-- Uses: time, queue, pace, groups
-- Unconfirmed: a run that is not admitted is still in its line
-- Answers: ok
--   ok: with the next cursor (0: all groups were seen), the number of runs that left their lines, and the number of groups
local EXAMINED = 10 -- runs of a full group that are examined
local clock = server_ms(now)

-- Take the place from runs that can't have one, and forget starts that are over. A process of an older version may have ended the
-- runs, or their hash is lost.
local function examine(group)
  local ids = redis.pcall('SRANDMEMBER', admitted_key(group), EXAMINED)
  for i = 1, #ids do
    local its_group, status = read_fields(run_key(ids[i]), 'group', 'status')
    if its_group ~= group or not (status == QUEUED or status == RUNNING) then redis.call('SREM', admitted_key(group), ids[i]) end
  end
  ids = redis.pcall('SRANDMEMBER', starting_key(group), EXAMINED)
  for i = 1, #ids do
    local its_group, status = read_fields(run_key(ids[i]), 'group', 'status')
    local has_place = redis.pcall('SISMEMBER', admitted_key(group), ids[i]) == 1
    if its_group ~= group or status ~= QUEUED or not has_place then redis.call('SREM', starting_key(group), ids[i]) end
  end
end

local next_cursor, groups = unpack(redis.call('SSCAN', groups_key(), cursor, 'COUNT', most))
local admitted = 0
for i, group in ipairs(groups) do
  if redis.call('EXISTS', line_key(group)) == 0 then
    redis.call('SREM', groups_key(), group)
  else
    if (i - 1) % SWEEP_TURNS == tonumber(turn) % SWEEP_TURNS then examine(group) end
    admitted = admitted + fill(group, clock)
  end
end
return { 'ok', next_cursor, admitted, #groups }
