-- revive: an operator brings an ended run back; a new life begins.
-- Protects: a revive that is sent twice or late revives once; a key that names another run by now is not taken from it.
-- ARGV: now, id, operation, life, from_start, digest
-- Flags: allow-oom
-- Uses: time, run, queue, checkpoint, endings
-- Moves: failed -> queued, dead -> queued, cancelled -> queued
-- Answers: queued, changed, running, completed, conflict, unreadable, missing
local clock = server_ms(now)
local run = read_run(id)
local counters = run and read_counters(run.counters)
if not counters then return { 'missing' } end
if redis.call('HGET', run_key(id), 'revival') == operation then
  redis.call('HSET', run_key(id), 'revival', operation)
  return { 'queued' }
end
if life ~= '' and tonumber(life) ~= counters.life then return { 'changed' } end
if run.status == 'completed' then return { 'completed' } end
if run.status ~= 'failed' and run.status ~= 'dead' and run.status ~= 'cancelled' then return { 'running' } end
if not redis.call('HGET', run_key(id), 'spec') then return { 'missing' } end
local head, unreadable = read_head(id)
if unreadable and from_start ~= '1' then return { 'unreadable' } end
local kept = redis.call('HMGET', run_key(id), 'digest', 'asked')
local named = id .. ' ' .. (digest ~= '' and digest or kept[1] or '')
local once
if run.once then
  once = once_key(string.match(run.route, '^[^:]+:(.+)@%d+$'), string.match(run.once, '^%S+ (.*)$'))
  local names = redis.pcall('GET', once)
  if names and names ~= named then return { 'conflict' } end
end

if once then redis.call('SET', once, named) end
redis.call('PERSIST', run_key(id))
redis.call('ZREM', ended_key(run.status), id)
if from_start == '1' or not head then
  drop_checkpoint(id)
  redis.call('HSET', run_key(id), 'route', (string.gsub(run.route, '@%d+$', '@' .. (kept[2] or '0'))))
  counters.struck, counters.failed = 0, 0
else
  redis.call('PERSIST', ckpt_key(id))
  redis.call('PERSIST', messages_key(id, int(head.generation)))
  counters.struck, counters.failed = head.progress, head.progress
end
grow_epoch(counters, clock)
counters.life = counters.life + 1
counters.strikes, counters.failures, counters.recoveries, counters.backoffs = 0, 0, 0, 0
rescore(counters, clock)
redis.call('HDEL', run_key(id), 'cancel', 'ended', 'result', 'reason', 'expires', 'kill', 'killed', 'spent')
if run.kill then redis.call('HSET', run_key(id), 'killed', run.kill) end -- what it died of, for its next life to see
redis.call('HSET', run_key(id), 'revival', operation)
tell(id, counters, clock, 'revived', from_start == '1' and 'from the start' or '')
put_back(id, counters, clock, 'revive', nil)
return { 'queued' }
