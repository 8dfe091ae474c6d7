-- Gives one hold of a reentrant lock back; the last one removes the lock.
--
--   KEYS[1]  the lock
--   ARGV[1]  token
--   returns  1 one hold less, 0 not the token's
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) < 1 then
  redis.call('DEL', KEYS[1])
end
return 1
