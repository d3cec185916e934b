-- External calls that share a rate. The rate of a name is a bucket: each call adds its cost to the level, the level falls with
-- time, and a call may start while the level stays at or below the burst. calls.lua has the requests.

-- Return the ticket for the next request that waits, if the bucket was lost: behind the last one in the line.
local function next_ticket(name)
  local _, last = unpack(redis.call('ZRANGE', turns_key(name), -1, -1, 'WITHSCORES'))
  return (tonumber(last) or 0) + 0.001
end

-- Return the bucket of a name as it is now; nil if a key has a wrong type. A clock that was set back neither raises the level nor
-- stops it from falling, and does not prolong a back-off. `seen` is the highest number that the worker has sent for the name.
local function read_bucket(name, speed, clock, worker)
  local values = redis.pcall('HMGET', bucket_key(name), 'level', 'at', 'resumes', 'pause', 'ticket', 'settled', 'seen:' .. worker)
  local held, waiting = redis.pcall('ZCARD', holders_key(name)), redis.pcall('ZCARD', turns_key(name))
  if values.err or type(held) ~= 'number' or type(waiting) ~= 'number' then return nil end
  local level, at, resumes, pause, ticket, settled, seen = unpack(values)
  level, at, resumes, pause = tonumber(level) or 0, tonumber(at) or clock, tonumber(resumes) or 0, tonumber(pause) or 0
  return {
    level = math.max(0, level - math.max(0, clock - at) * speed),
    resumes = math.min(resumes, clock + pause), pause = pause,
    ticket = waiting == 0 and 0 or tonumber(ticket) or next_ticket(name), settled = settled or '0', seen = tonumber(seen) or 0,
    held = held, waiting = waiting, new = not seen,
  }
end

-- Store the bucket. It expires when its level is 0 and the requests that wait have asked again, but not before late calls have
-- arrived.
local function write_bucket(name, bucket, speed, clock, worker)
  redis.call('HSET', bucket_key(name), 'level', string.format('%.17g', bucket.level), 'at', int(clock), 'resumes', int(bucket.resumes),
    'pause', int(bucket.pause), 'ticket', string.format('%.17g', bucket.ticket), 'settled', bucket.settled)
  if worker ~= '' then redis.call('HSET', bucket_key(name), 'seen:' .. worker, int(bucket.seen)) end
  local idle = math.max(speed > 0 and math.ceil((bucket.level + bucket.ticket) / speed) or 0, bucket.resumes - clock, 0)
  redis.call('PEXPIRE', bucket_key(name), int(idle + TOMBSTONE_MS))
end
