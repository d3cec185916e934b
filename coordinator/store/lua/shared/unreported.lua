-- Endings that no worker reports, because the script of a client, a supervisor or a coordinator ends the run. A coordinator that
-- exports metrics or reports traces keeps a list of them (see take_endings.lua). Without such a coordinator the list does not exist,
-- and nothing is written.

-- Add the runs that this script ends from now on to the list. An entry is <id> <life> <attempts> <status> <ms> <route>. The route
-- names the kind, so that an ending can be counted after its run was removed.
local function note_endings()
  note_ending = function(id, run, status, now)
    -- Counters that can't be read are those of a damaged run, which the doctor ends.
    local life, attempts = string.match(run.counters or '', '^(%d+) (%d+)')
    local entry = string.format('%s %s %s %s %s %s', id, life or 1, attempts or 0, status, int(now), run.route)
    local length = redis.pcall('RPUSHX', unreported_key(), entry)
    if type(length) == 'number' and length > UNREPORTED_LENGTH then redis.pcall('LTRIM', unreported_key(), -UNREPORTED_LENGTH, -1) end
  end
end
