-- A stand-alone checkpoint (a record) is stored like the checkpoint of a run (see checkpoint.lua), under keys of its own. A
-- script that uses this part before checkpoint.lua makes the functions of checkpoint.lua read and write the keys of a record.
local function ckpt_key(id) return record_key(id) end
local function messages_key(id, generation) return record_messages_key(id, generation) end
local function run_key(id) return record_key(id) end
local function effects_key(id) return record_key(id) end -- A record has no effects.
