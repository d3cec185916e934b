-- fail: ends a run whose handler raised, and keeps its checkpoint for the retention.
-- Protects: only the owner ends a run, once; the same call again gets the same answer.
-- ARGV: now, id, token, error, brief, delta
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: running -> failed
-- Answers: ok, fenced, gap
local clock = server_ms(now)
local run, answer = owners_run(id, token, 'fail', delta)
if not run then return answer end

end_attempt(id, run, token, clock, 'failed', brief)
local counters = run.counters
counters.failures = counters.failures + 1
remember_call(id, token, 'fail', 'ok')
redis.call('HSET', run_key(id), 'error', error, 'counters', write_counters(counters))
finish(id, run, 'failed', clock)
return { 'ok' }
