-- What is wrong with a run: it must be in exactly one place, the one that its status names. Reads only, whatever the types are.
local OPEN = { queued = true, delayed = true, running = true, waiting = true }
local OVER = { completed = true, failed = true, cancelled = true, dead = true }
local SUSPECT_FROM = 2 -- strikes
local SOON = 60000 -- what ends by itself within this time is left alone

-- A reply, or nil where the key is of another type: that is said of the key itself.
local function ask(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return nil end
  return reply
end

local function scored(key, member) return ask('ZSCORE', key, member) and true or false end
local function member_of(key, member) return ask('SISMEMBER', key, member) == 1 end

-- Of the spec only whether it is there: with inputs of a megabyte, dozens of them in a script would hold up every other caller.
local function look_at(id)
  local v = fields(run_key(id), 'status', 'token', 'route', 'counters', 'retention', 'once', 'cancel', 'expires', 'ended', 'kill')
  if not v then return nil end
  local run = {
    status = v[1], token = v[2], route = v[3], counters = v[4], retention = v[5], once = v[6], cancel = v[7], expires = v[8],
    ended = v[9], kill = v[10], spec = redis.call('HEXISTS', run_key(id), 'spec') == 1,
  }
  run.worker = run.token and worker_of(run.token)
  run.known = OPEN[run.status] or OVER[run.status]
  run.routed = run.route and string.find(run.route, '^[^:]+:.+@%d+$')
  run.counted = read_counters(run.counters)
  return run
end

-- The first thing of a run that can't be read, with what is there instead.
local function unreadable(run)
  if not run.known then return 'status ' .. (run.status or '') end
  if not run.routed then return 'route ' .. (run.route or '') end
  if not run.counted then return 'counters ' .. (run.counters or '') end
  if OPEN[run.status] and not run.spec then return 'spec' end
  return nil
end

-- Everything that is wrong, as words with a detail each: { word, detail, word, detail, … }; nil where there is no such run.
local function faults(id)
  local key, found = run_key(id), {}
  if redis.call('EXISTS', key) == 0 then return nil end
  local run = look_at(id)
  if not run then return { 'mistaken', '' } end
  local function say(fault, detail)
    found[#found + 1] = fault
    found[#found + 1] = detail or ''
  end
  local what = unreadable(run)
  if what then
    say('unreadable', what)
    return found, run
  end

  local home
  if run.status == 'queued' then home = run.counted.strikes >= SUSPECT_FROM and 'suspect' or 'ready' end
  if run.status == 'delayed' then home = 'delayed' end
  local inside = {
    ready = scored(ready_key(run.route), id), suspect = scored(suspect_key(run.route), id), delayed = scored(delayed_key(), id),
  }
  if home and not inside[home] then say('lineless', home) end
  for _, line in ipairs({ 'ready', 'suspect', 'delayed' }) do
    if inside[line] and line ~= home then say('twice', line) end
  end
  if run.status == 'queued' and inside[home] and not member_of(routes_key(), run.route) then say('unrouted', run.route) end

  if run.status == 'running' then
    if not run.worker then
      say('tokenless', run.token or '')
    elseif not scored(workers_key(), run.worker) then
      say('ownerless', run.worker)
    elseif not member_of(owned_key(run.worker), id) then
      say('unowned', run.worker)
    end
    if not member_of(live_key(), id) then say('unlive') end
    if run.cancel and not scored(deadlines_key(), 'cancel:' .. id) then say('timeless', 'cancel') end
  elseif run.token then
    say('held', run.worker or run.token)
  end
  if home and run.expires and not scored(deadlines_key(), 'expire:' .. id) then say('timeless', 'expire') end

  local ttl, saved = redis.call('PTTL', key), redis.call('PTTL', ckpt_key(id))
  if OPEN[run.status] then
    if ttl >= 0 then say('mortal', 'run') end
    if saved >= 0 then say('mortal', 'checkpoint') end
    return found, run
  end
  if member_of(live_key(), id) then say('live') end
  if ttl < 0 then say('endless', 'run') elseif saved == -1 then say('endless', 'checkpoint') end
  if ttl > SOON and run.spec and not scored(ended_key(run.status), id) then say('unlisted', run.status) end
  return found, run
end
