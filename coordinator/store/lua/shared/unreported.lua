-- Endings for which no worker reports a span, because the script of a client, a supervisor or a coordinator ends the run. A
-- coordinator that reports traces keeps a list of them (see take_endings.lua). Without such a coordinator the list does not exist,
-- and nothing is written.

-- Add the runs that this script ends from now on to the list. An entry is <id> <life> <attempts> <status> <ms>.
local function note_endings()
  note_ending = function(id, run, status, now)
    local life, attempts = string.match(run.counters, '^(%d+) (%d+)')
    local entry = string.format('%s %s %s %s %s', id, life, attempts, status, int(now))
    local length = redis.pcall('RPUSHX', unreported_key(), entry)
    if type(length) == 'number' and length > UNREPORTED_LENGTH then redis.pcall('LTRIM', unreported_key(), -UNREPORTED_LENGTH, -1) end
  end
end
