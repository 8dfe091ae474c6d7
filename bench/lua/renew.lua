-- Lets a lease end that long from now, if the token still holds the lock: compare and set the expiry.
--
--   KEYS[1]  the lock
--   ARGV[1]  token
--   ARGV[2]  lease in ms
--   returns  1 renewed, 0 not the token's
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
