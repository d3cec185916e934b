-- take_endings: take the endings of runs that no worker reports, and keep the lists to which they are added.
-- A coordinator may do one of two jobs with an ending, or both: report its span, and count it. A coordinator that does one job leaves
-- the endings that it takes for a coordinator that does the other job, if there is one. So each job gets each ending once.
-- Role: coordinator
-- Keys: uncounted, unreported, untraced
-- ARGV: most, spans, counts
--   most: the largest number of entries to take from each list
--   spans: 1 if the caller reports spans
--   counts: 1 if the caller counts endings
-- Flags: allow-oom
-- Unconfirmed: an entry that is lost in a failover is neither reported nor counted
-- Answers: ok
--   ok: with the entries for spans and the entries to count, oldest first; shared/unreported.lua describes them. The entry `open` is
--   not an ending; it keeps a list
local tracing = { done_here = spans == '1', key = untraced_key() }
local counting = { done_here = counts == '1', key = uncounted_key() }
local jobs = { tracing, counting }
local function first(key) return redis.call('LRANGE', key, 0, tonumber(most) - 1) end
local taken = first(unreported_key())
for _, job in ipairs(jobs) do job.entries = job.done_here and first(job.key) or {} end

-- Other scripts write to a list only while it exists, so it is never left empty.
local function remove_first(key)
  redis.call('LTRIM', key, most, -1)
  if redis.call('EXISTS', key) == 0 then redis.call('RPUSH', key, 'open') end
  redis.call('PEXPIRE', key, UNREPORTED_MS)
end
remove_first(unreported_key())
for _, job in ipairs(jobs) do
  if job.done_here then
    remove_first(job.key)
    for i = 1, #taken do job.entries[#job.entries + 1] = taken[i] end
  else
    for i = 1, #taken do redis.pcall('RPUSHX', job.key, taken[i]) end
    redis.pcall('LTRIM', job.key, -UNREPORTED_LENGTH, -1)
  end
end
return { 'ok', tracing.entries, counting.entries }
