-- A semaphore as a sorted set: the member is the holder's token, the score when its permit ends.
-- KEYS[1] semaphore, ARGV[1] token, ARGV[2] ttl in ms, ARGV[3] limit. Answers 1, or 0 if all permits are taken.
--
-- The dead are removed before the count, also by a call that is refused. The key's TTL is that of the latest grant, so a
-- short permit takes longer ones with it when it ends. Asking again sets the end anew, also to an earlier one.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
    return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
