-- revive: requeue an ended run, which begins a new life.
-- Protects: a revive that is sent twice or late revives once; if the run's idempotency key belongs to another run by now, the
-- other run keeps it.
-- Role: producer
-- Keys: admitted, aside, bell, ckpt, coordinator_bell, delayed, effects, ended, graph, graph_index, graph_threads, groups
-- Keys: joins, limits, line, messages, namespace, once, output, pace, paced, ready, results, routes, run, signal_keys
-- Keys: signal_operations, signals, starting, suspect, suspect_bell
-- ARGV: now, id, operation, life, from_start, digest, forget
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   id: id of the run
--   operation: id of this revive; a repeated call has the same
--   life: the life that ended; empty: the current one
--   from_start: 1 if the next attempt starts without the checkpoint
--   digest: the digest of the inputs, for the idempotency key; empty: the stored one
--   forget: all to forget all effects of the run; empty to forget the named ones
-- ITEM: effect
--   effect: name of an effect to forget
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, spend, children, output, pace, groups, endings
-- Moves: failed -> queued, dead -> queued, cancelled -> queued
-- Answers: queued, changed, running, completed, conflict, unreadable, unknown, missing
--   running: the run has not ended
--   conflict: its idempotency key names another run
--   unreadable: the checkpoint can't be read; the run can still be revived from the start
--   unknown: the run has no effect of one of the names, which is the second part of the answer
local clock = server_ms(now)
local run = read_run(id)
local counters = run and read_counters(run.counters)
if not counters then return { 'missing' } end
if redis.call('HGET', run_key(id), 'revival') == operation then
  redis.call('HSET', run_key(id), 'revival', operation)
  return { 'queued' }
end
if life ~= '' and tonumber(life) ~= counters.life then return { 'changed' } end
if run.status == COMPLETED then return { 'completed' } end
if not is_ended(run.status) then return { 'running' } end
if not redis.call('HGET', run_key(id), 'spec') then return { 'missing' } end
local head, unreadable = read_head(id)
if unreadable and from_start ~= '1' then return { 'unreadable' } end
local stored_digest, asked = unpack(redis.call('HMGET', run_key(id), 'digest', 'asked'))
local named = id .. ' ' .. (digest ~= '' and digest or stored_digest or '')
local once
if run.once then
  local _, kind = string.match(run.route, ROUTE_PARTS)
  once = once_key(kind, string.match(run.once, '^%S+ (.*)$'))
  local names = redis.pcall('GET', once)
  if names and names ~= named then return { 'conflict' } end
end
-- If the key of the effects is lost or damaged, no name can be checked.
if items > 0 and (redis.call('EXISTS', effects_key(id)) == 1 or not knows_effects(run.beside)) then
  for i = 1, items do
    local found = redis.pcall('HMGET', effects_key(id), 'begun:' .. item(i), 'done:' .. item(i))
    local begun, done = unpack(found)
    if not found.err and not begun and not done then return { 'unknown', item(i) } end
  end
end

if once then redis.call('SET', once, named) end
redis.call('PERSIST', run_key(id))
redis.call('ZREM', ended_key(run.status), id)
if from_start == '1' or not head then
  drop_checkpoint(id)
  redis.call('HSET', run_key(id), 'route', (string.gsub(run.route, '@%d+$', '@' .. (asked or '0'))))
  counters.struck, counters.failed = 0, 0
else
  redis.call('PERSIST', ckpt_key(id))
  redis.call('PERSIST', messages_key(id, int(head.generation)))
  counters.struck, counters.failed = head.progress, head.progress
end
if run.beside then
  for _, key in ipairs({ signals_key(id), signal_keys_key(id), signal_operations_key(id), joins_key(id), results_key(id),
    output_key(id), effects_key(id) }) do
    redis.call('PERSIST', key)
  end
  if string.find(run.beside, 'o', 1, true) then reopen_output(id) end
  if string.find(run.beside, 'g', 1, true) then keep_graphs(id, (from_start == '1' or not head) and 0 or nil) end
  if from_start == '1' or not head then redis.call('UNLINK', joins_key(id), results_key(id)) end
end
local forgotten = 0
for i = 1, items do
  local count = redis.pcall('HDEL', effects_key(id), 'begun:' .. item(i), 'done:' .. item(i))
  if type(count) == 'number' then forgotten = forgotten + count end
end
if forget == 'all' then redis.call('UNLINK', effects_key(id)) end
-- If the key of the effects is lost, naming some of them is not enough, because the other effects are unknown.
if forget == 'all' or (forgotten > 0 and redis.call('EXISTS', effects_key(id)) == 0) then note_no_effects(id) end
advance_epoch(counters, clock)
counters.life = counters.life + 1
counters.strikes, counters.failures, counters.recoveries, counters.backoffs = 0, 0, 0, 0
rescore(counters, clock)
redis.call('HDEL', run_key(id), 'cancel', 'ended', 'result', 'reason', 'expires', 'kill', 'killed', 'spent', 'losses', 'rewoken',
  'rejoined', 'endings', 'called')
-- The next life can see the error with which the last one was killed.
if run.kill then redis.call('HSET', run_key(id), 'killed', run.kill) end
redis.call('HSET', run_key(id), 'revival', operation)
append_story(id, counters, clock, 'revived', from_start == '1' and 'from the start' or '')
requeue(id, counters, 'revive', nil)
return { 'queued' }
