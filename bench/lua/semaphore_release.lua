-- Gives a permit back.
--
--   KEYS[1]  the semaphore
--   ARGV[1]  token
--   returns  1 given back, 0 the token has none
--
-- What it is known for: it does not look at the score, so a permit that is over already is given back with 1, as if it had held
-- until now.
return redis.call('ZREM', KEYS[1], ARGV[1])
