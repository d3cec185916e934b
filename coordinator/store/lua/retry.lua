-- retry: a handler raised, and its policy tries again after a delay. It gets a new score.
-- Protects: only the owner puts a run back, once; a cancel or a kill that was asked for wins.
-- ARGV: now, id, token, delay, error, brief, delta
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: running -> delayed, running -> cancelled, running -> failed
-- Answers: ok, cancelled, failed, fenced, gap
local clock = server_ms(now)
local run, answer = owners_run(id, token, 'retry', delta)
if not run then return answer end

local progress, counters = end_attempt(id, run, token, clock, 'retried', brief), run.counters
grow_epoch(counters, clock)
counters.failures, counters.failed = counters.failures + 1, progress
redis.call('HSET', run_key(id), 'error', error)
local ended = end_as_asked(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'retry', ended)
  return { ended }
end
remember_call(id, token, 'retry', 'ok')
local due = clock + tonumber(delay)
rescore(counters, due)
put_back(id, counters, clock, 'retry', due)
return { 'ok' }
