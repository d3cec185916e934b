-- confirm: write a mark at the end of a trip that waits for replicas.
-- Protects: the WAIT that follows covers all earlier writes, even if the calls of this trip themselves wrote nothing.
-- Role: producer, worker, coordinator
-- Keys: mark
-- Flags: allow-oom
-- Unconfirmed: this is the write that the trip waits for
-- Answers: ok
redis.call('SET', mark_key(), '', 'PX', MARK_MS)
return { 'ok' }
