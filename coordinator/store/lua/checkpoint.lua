-- checkpoint: saves what is new of runs.
-- Protects: only the owner saves; a lost reply neither doubles nor loses a message; a late save changes nothing.
-- ARGV: now
-- EACH: id, token, delta
-- Uses: time, run, checkpoint
-- Answers: ok, gap, old, fenced, bad, unreadable
local clock = server_ms(now)
local answers = {}
for i = 1, items do
  local id, token, delta = item(i)
  local run = fields(run_key(id), 'token')
  if not run or run[1] ~= token then
    answers[i] = { 'fenced' }
  else
    local plan, word = plan_delta(id, delta)
    answers[i] = plan and { 'ok', apply_delta(plan, clock) } or { word }
  end
end
return answers
