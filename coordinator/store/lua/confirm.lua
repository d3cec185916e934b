-- confirm: leaves a mark at the end of a trip that waits for replicas.
-- Protects: that a WAIT after it waits for all that was written before, whether or not the calls of the trip had anything to write.
-- Flags: allow-oom
-- Unconfirmed: it is what is waited for
-- Answers: ok
redis.call('SET', mark_key(), '', 'PX', 60000)
return { 'ok' }
