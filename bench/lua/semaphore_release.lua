-- Gives a permit of semaphore_acquire.lua back.
-- KEYS[1] semaphore, ARGV[1] token. Answers 1, or 0 if the token has none.
--
-- It does not look at the score: a permit that is over already is given back with 1, as if it had held until now.
return redis.call('ZREM', KEYS[1], ARGV[1])
