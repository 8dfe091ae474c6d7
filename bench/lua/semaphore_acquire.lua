-- Takes one of several permits: a sorted set of the holders' tokens, each with the end of its permit as the score.
--
--   KEYS[1]  the semaphore
--   ARGV[1]  token
--   ARGV[2]  lease in ms
--   ARGV[3]  how many permits there are
--   returns  1 taken, 0 all are held
--
-- What it is known for: the key's TTL is that of the latest grant, so a short permit takes longer ones with it when it ends. Asking
-- again sets the end anew, also to an earlier one. The dead are removed before the count, so a refusal writes.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
