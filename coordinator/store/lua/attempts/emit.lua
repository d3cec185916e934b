-- emit: write events that handlers emitted to the outputs of their runs.
-- Protects: only the owner writes events; an event that is sent twice is stored once; events that arrive late change nothing.
-- Role: worker
-- Keys: namespace, output, run
-- ARGV: now
--   now: the caller's time in ms, which counts only in a namespace with the test clock; empty: none
-- EACH: id, token, output
--   id: id of the run
--   token: the token of the run's owner
--   output: the events, see shared/output.lua
-- Uses: time, checkpoint, output
-- Answers: ok, fenced, bad
--   bad: the events can't be read
local clock = server_ms(now)
local answers = {}
for i = 1, items do
  local id, token, output = item(i)
  local owner_token = read_fields(run_key(id), 'token')
  if owner_token ~= token then
    answers[i] = 'fenced'
  else
    answers[i] = write_output(id, token, output, clock) and 'ok' or 'bad'
  end
end
return answers
