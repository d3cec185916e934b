-- take_endings: take the endings of runs that no worker reports, and keep the lists to which they are added.
-- A coordinator may do one of two jobs with an ending, or both: report its span, and count it. A coordinator that does one job leaves
-- the endings that it takes for a coordinator that does the other job, if there is one. So each job gets each ending once, unless the
-- server loses its last writes.
-- Role: coordinator
-- Keys: uncounted, unreported, untraced
-- ARGV: most, spans, counts
--   most: the largest number of entries to take from each list
--   spans: 1 if the caller reports spans
--   counts: 1 if the caller counts endings
-- Flags: allow-oom
-- Unconfirmed: after a failover or a power cut of the server, the last entries are lost, or they are taken and counted again
-- Answers: ok
--   ok: with the entries for spans and the entries to count, oldest first; shared/unreported.lua describes them
local tracing = { done_here = spans == '1', key = untraced_key() }
local counting = { done_here = counts == '1', key = uncounted_key() }
local jobs = { tracing, counting }
-- The entry `open` is not an ending. It only keeps a list, so it is neither answered nor left for the other job.
local function read_first(key)
  local endings = {}
  for _, entry in ipairs(redis.call('LRANGE', key, 0, tonumber(most) - 1)) do
    if entry ~= 'open' then endings[#endings + 1] = entry end
  end
  return endings
end
local taken = read_first(unreported_key())
for _, job in ipairs(jobs) do job.entries = job.done_here and read_first(job.key) or {} end

-- Other scripts write to a list only while it exists, so it is never left empty. A list that holds only `open` is left as it is, and
-- its time to live is renewed only after half of it, so that a coordinator without work only reads.
local function remove_first(key, endings)
  if #endings > 0 or redis.call('LLEN', key) ~= 1 then
    redis.call('LTRIM', key, most, -1)
    if redis.call('EXISTS', key) == 0 then redis.call('RPUSH', key, 'open') end
  end
  if redis.call('PTTL', key) < UNREPORTED_MS / 2 then redis.call('PEXPIRE', key, UNREPORTED_MS) end
end
remove_first(unreported_key(), taken)
for _, job in ipairs(jobs) do
  if job.done_here then
    remove_first(job.key, job.entries)
    for i = 1, #taken do job.entries[#job.entries + 1] = taken[i] end
  elseif #taken > 0 then
    for i = 1, #taken do redis.pcall('RPUSHX', job.key, taken[i]) end
    redis.pcall('LTRIM', job.key, -UNREPORTED_LENGTH, -1)
  end
end
return { 'ok', tracing.entries, counting.entries }
