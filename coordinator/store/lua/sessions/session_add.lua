-- session_add: append items to a session of an agent, or replace all its items.
-- Protects: a call that is sent twice or late appends its items once, even if other programs have changed the session meanwhile.
-- Role: producer, worker
-- Keys: namespace, session, session_operations
-- ARGV: now, session, mode, ttl, operation
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   session: id of the session
--   mode: append or replace
--   ttl: ms that the session is kept after this call; 0: it does not expire
--   operation: id of this change; a repeated call has the same
-- ITEM: content
--   content: an item, encoded
-- Uses: time, session
-- Answers: ok
local clock, key = server_ms(now), session_key(session)
check_session(session)
if answer_again(session, operation) then return { 'ok' } end
if mode == 'replace' then redis.call('UNLINK', key) end
for i = 1, items do redis.call('RPUSH', key, (item(i))) end
if ttl ~= '0' then redis.call('PEXPIRE', key, ttl) end
remember_operation(session, operation, '', clock)
return { 'ok' }
