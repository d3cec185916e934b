-- reject: the attempt ended before the handler's first line. The run comes back later, at a new place.
-- Protects: only the owner puts a run back, once; it is a strike only where the kind has been seen to work (proven).
-- ARGV: now, id, token, proven, jitter, error, brief
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Answers: delayed, dead, cancelled, failed, fenced
local clock = server_ms(now)
local run, answer = owners_run(id, token, 'reject', '')
if not run then return answer end

local progress, counters = end_attempt(id, run, token, clock, 'rejected', brief), run.counters
grow_epoch(counters, clock)
redis.call('HSET', run_key(id), 'error', error)
local ended = end_as_asked(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'reject', ended)
  return { ended }
end
if proven == '1' then strike(counters, progress) end
counters.recoveries = counters.recoveries + 1
if struck_out(counters) then
  remember_call(id, token, 'reject', 'dead')
  bury(id, run, counters, clock, 'its handler could not be started')
  return { 'dead' }
end
remember_call(id, token, 'reject', 'delayed')
local due = clock + back_off(counters, jitter)
rescore(counters, due)
put_back(id, counters, clock, redis.call('HGET', run_key(id), 'cause') or '', due) -- why it is resumed is what it was
return { 'delayed' }
