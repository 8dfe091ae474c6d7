-- Gives a lock back if the token still holds it: compare and delete, in one step so that nobody's fresh lock is deleted.
--
--   KEYS[1]  the lock
--   ARGV[1]  token
--   returns  1 released, 0 not the token's
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
