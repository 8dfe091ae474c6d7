-- A reentrant lock as a hash: the field is the holder's token, its value how often it holds.
-- KEYS[1] lock, ARGV[1] token, ARGV[2] ttl in ms. Answers the holds, or 0 if another token holds it.
--
-- Every grant sets the TTL anew, so an inner call with a short ttl cuts the outer call's lease.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
local holds = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return holds
