-- Takes a lock, as most libraries do: the token is set where no key is, and the lease is its TTL.
--
--   KEYS[1]  the lock
--   ARGV[1]  token
--   ARGV[2]  lease in ms
--   returns  1 taken, 0 held by somebody (also by the same token: a lost reply locks its own caller out)
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return 0
