-- sweep: give the free places of groups to the runs in their lines. Other scripts do this whenever a run leaves its place; this
-- script does it after a change of a limit, and after a repair.
-- Protects: a limit that was raised takes effect within a second; a place whose run is gone is given to the next run.
-- Role: coordinator
-- Keys: admitted, aside, bell, groups, limits, line, namespace, ready, routes, run, suspect, suspect_bell
-- ARGV: now, cursor, most
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   cursor: the cursor that the last call answered; 0: begin with the first group
--   most: about how many groups to look at in this call
-- Flags: allow-oom
-- Uses: time, queue, groups
-- Unconfirmed: a run that is not admitted is still in its line
-- Answers: ok
--   ok: with the next cursor (0: all groups were seen), the number of runs that left their lines, and the number of groups
local EXAMINED = 10 -- runs of a full group that are examined
local clock = server_ms(now)

-- Take the place from runs that can't have one. A process of an older version may have ended them, or their hash is lost.
local function examine(group)
  local ids = redis.pcall('SRANDMEMBER', admitted_key(group), EXAMINED)
  for i = 1, #ids do
    local its_group, status = read_fields(run_key(ids[i]), 'group', 'status')
    if its_group ~= group or not (status == QUEUED or status == RUNNING) then redis.call('SREM', admitted_key(group), ids[i]) end
  end
end

local next_cursor, groups = unpack(redis.call('SSCAN', groups_key(), cursor, 'COUNT', most))
local admitted = 0
for _, group in ipairs(groups) do
  if redis.call('EXISTS', line_key(group)) == 0 then
    redis.call('SREM', groups_key(), group)
  else
    examine(group)
    admitted = admitted + fill(group, clock)
  end
end
return { 'ok', next_cursor, admitted, #groups }
