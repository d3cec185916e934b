-- retry: a handler raised, and its policy tries again after a delay. It gets a new score.
-- Protects: only the owner puts a run back, once; a cancel or a kill that was asked for wins. Where it is to start over, what was
-- saved goes, and no progress begins its count of failures anew: there is some each time.
-- ARGV: now, id, token, delay, error, brief, from_start, delta
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: running -> delayed, running -> cancelled, running -> failed
-- Answers: ok, cancelled, failed, fenced, gap
local FURTHER_THAN_ANY = 9007199254740991
local clock = server_ms(now)
local run, answer = owners_run(id, token, 'retry', delta)
if not run then return answer end

local counters, failures = run.counters, run.counters.failures
local again = from_start == '1'
local progress = end_attempt(id, run, token, clock, 'retried', brief, again and 'from the start')
grow_epoch(counters, clock)
if again then counters.failures, progress = failures, FURTHER_THAN_ANY end
counters.failures, counters.failed = counters.failures + 1, progress
redis.call('HSET', run_key(id), 'error', error)
local ended = end_as_asked(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'retry', ended)
  return { ended }
end
remember_call(id, token, 'retry', 'ok')
if again then
  drop_checkpoint(id)
  local spent = read_spent(redis.call('HGET', run_key(id), 'spent'))
  spent.progress, spent.idle = 0, 0
  local asked = redis.call('HGET', run_key(id), 'asked') or '0'
  redis.call('HSET', run_key(id), 'route', (string.gsub(run.route, '@%d+$', '@' .. asked)), 'spent', write_spent(spent))
end
local due = clock + tonumber(delay)
rescore(counters, due)
put_back(id, counters, clock, 'retry', due)
return { 'ok' }
