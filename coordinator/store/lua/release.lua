-- release: a worker hands a run back, newest state included. It keeps its place.
-- Protects: only the owner puts a run back, once; a stopping worker's release costs the run nothing; any other is backed off,
-- and is a strike where there was no progress; a cancel or a kill that was asked for wins.
-- ARGV: now, id, token, mode, jitter, delta
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: running -> queued, running -> delayed, running -> dead, running -> cancelled, running -> failed
-- Answers: ok, delayed, dead, cancelled, failed, fenced, gap
-- mode is 'stopping' (also for what reconcile gives back) or 'unasked'
local clock = server_ms(now)
local run, answer = owners_run(id, token, 'release', delta)
if not run then return answer end

local progress, counters = end_attempt(id, run, token, clock, mode == 'stopping' and 'released' or 'stopped'), run.counters
grow_epoch(counters, clock)
local ended = end_as_asked(id, run, counters, clock, 'cancelled')
if ended then
  remember_call(id, token, 'release', ended)
  return { ended }
end
if mode == 'stopping' then
  counters.releases = counters.releases + 1
  remember_call(id, token, 'release', 'ok')
  put_back(id, counters, clock, 'release', nil)
  return { 'ok' }
end
strike(counters, progress)
counters.recoveries = counters.recoveries + 1
if struck_out(counters) then
  remember_call(id, token, 'release', 'dead')
  bury(id, run, counters, clock, 'its handler stopped while nobody asked it to')
  return { 'dead' }
end
remember_call(id, token, 'release', 'delayed')
put_back(id, counters, clock, 'release', clock + back_off(counters, jitter))
return { 'delayed' }
