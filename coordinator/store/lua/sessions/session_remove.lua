-- session_remove: remove the last item of a session of an agent, or all its items.
-- Protects: a call that is sent twice or late removes its items once, and gets the answer of the first call.
-- Role: producer, worker
-- Keys: namespace, session, session_operations
-- ARGV: now, session, mode, ttl, operation
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
--   session: id of the session
--   mode: last or all
--   ttl: ms that the session is kept after this call; 0: it does not expire
--   operation: id of this change; a repeated call has the same
-- Flags: allow-oom
-- Uses: time, session
-- Answers: ok, empty
--   ok: with the removed item, in mode last
--   empty: there was no item, in mode last
local clock, key, operations = server_ms(now), session_key(session), session_operations_key(session)
check_session(session)
local answer = answer_again(session, operation)
if not answer and mode == 'last' then
  answer = redis.call('RPOP', key) or ''
  if ttl ~= '0' then redis.call('PEXPIRE', key, ttl) end
  remember_operation(session, operation, answer, clock)
elseif not answer then
  -- The stored answers of earlier removals contain items, so these answers are cleared too. The operations themselves stay, so that
  -- late calls are still recognised.
  redis.call('UNLINK', key)
  local all = redis.call('HGETALL', operations)
  for i = 1, #all, 2 do redis.call('HSET', operations, all[i], string.match(all[i + 1], '^%d+ ')) end
  remember_operation(session, operation, '', clock)
end
if mode == 'all' then return { 'ok' } end
if answer == '' then return { 'empty' } end
return { 'ok', answer }
