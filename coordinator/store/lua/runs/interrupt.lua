-- interrupt: end the blocking read of a client's outputs, because the client wants to read another output too.
-- Role: producer
-- Keys: reader
-- ARGV: client
--   client: id of the client
-- Flags: allow-oom
-- Unconfirmed: the blocking read ends after a while by itself
-- Answers: ok
redis.call('XADD', reader_key(client), 'MAXLEN', 1, '*', 'again', '1')
redis.call('PEXPIRE', reader_key(client), WAKE_MS)
return { 'ok' }
