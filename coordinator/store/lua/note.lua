-- note: keeps what handlers say of their progress, for runs that save seldom.
-- Protects: only the owner's note is shown.
-- EACH: id, token, note
-- Uses: run
-- Unconfirmed: a note is for people, and the next one replaces it
-- Answers: ok, fenced
local answers = {}
for i = 1, items do
  local id, token, note = item(i)
  local run = fields(run_key(id), 'token')
  local owner = run and run[1] == token
  if owner then redis.call('HSET', run_key(id), 'note', note) end
  answers[i] = owner and 'ok' or 'fenced'
end
return answers
