-- cap: forgets a batch of the ended runs of a status that are beyond the number that is kept: those first whose retention would be
-- over first.
-- Protects: a run that was revived meanwhile is only taken from the list.
-- ARGV: status, keep, batch
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings, forget
-- Unconfirmed: what is left is forgotten by the next tick
-- Answers: ok
local listed = redis.pcall('ZCARD', ended_key(status))
if type(listed) ~= 'number' then return { 'ok', 0 } end
local beyond = math.min(listed - tonumber(keep), tonumber(batch))
if beyond <= 0 then return { 'ok', 0 } end

local ids = redis.call('ZRANGE', ended_key(status), 0, beyond - 1)
for i = 1, #ids do
  local run = read_run(ids[i])
  if run and run.status == status then forget(ids[i], run) end
  redis.call('ZREM', ended_key(status), ids[i])
end
return { 'ok', #ids }
