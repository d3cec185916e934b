-- A record is kept as a checkpoint is (see _checkpoint.lua), under keys of its own: these take the place of a run's.
local function ckpt_key(id) return record_key(id) end
local function messages_key(id, generation) return record_messages_key(id, generation) end
local function run_key(id) return record_key(id) end
