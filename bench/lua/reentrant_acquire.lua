-- Takes a reentrant lock: a hash of one field, the holder's token, whose value is how often it holds.
--
--   KEYS[1]  the lock
--   ARGV[1]  token
--   ARGV[2]  lease in ms
--   returns  the holds, 0 if another token holds it
--
-- What it is known for: every grant sets the TTL anew, so an inner call with a short lease cuts the outer call's.
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local holds = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return holds
