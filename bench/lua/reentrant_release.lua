-- Gives one hold of reentrant_acquire.lua back; the last one removes the lock.
-- KEYS[1] lock, ARGV[1] token. Answers 1, or 0 if the token does not hold it.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) < 1 then
    redis.call('DEL', KEYS[1])
end
return 1
