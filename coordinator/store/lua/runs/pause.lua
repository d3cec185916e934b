-- pause: make workers stop claiming the runs of a queue or a kind in this partition. Runs that are running continue.
-- Protects: a call that is sent twice or late does not undo a later unpause.
-- Role: producer
-- Keys: paused, pauses
-- ARGV: name, seen, operation
--   name: queue:<name> or kind:<name>
--   seen: what the last answer 'changed' told the caller; empty: the caller knows nothing, so the answer is 'changed'
--   operation: id of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: pause
-- Answers: ok, again, changed
--   again: the queue or kind was already paused
--   changed: with the operation of the last change and the server's time; the caller sends the change again with them as seen
local answer, changes = check_change(name, seen, operation)
if answer then return answer end

local word = redis.call('SADD', paused_key(), name) == 1 and 'ok' or 'again'
remember_change(name, operation, word, changes)
return { word }
