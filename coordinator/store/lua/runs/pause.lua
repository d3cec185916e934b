-- pause: make workers stop claiming the runs of a queue or a kind in this partition. Runs that are running continue.
-- Protects: a call that is sent twice or late does not undo a later unpause.
-- Role: producer
-- Keys: paused, pauses
-- ARGV: name, seen, operation
--   name: queue:<name> or kind:<name>
--   seen: the text in the last answer 'changed'; empty: the caller has none yet, so the answer is 'changed'
--   operation: id of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: pause
-- Answers: ok, again, changed
--   again: the queue or kind was already paused
--   changed: with "<operation of the last change>@<the server's time in ms>"; the caller sends the change again with it as seen
local answer, changes = check_change(name, seen, operation)
if answer then return answer end

local word = redis.call('SADD', paused_key(), name) == 1 and 'ok' or 'again'
remember_change(name, operation, word, changes)
return { word }
