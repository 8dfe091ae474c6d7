-- A fixed window: count first, then look whether it was too much; the first hit starts the window.
--
--   KEYS[1]  the counter
--   ARGV[1]  limit
--   ARGV[2]  window in ms
--   ARGV[3]  units of this call
--   returns  {allowed 1 or 0, units counted, ms to the end of the window}
--
-- What it is known for: a refused call has been counted all the same, so a large one that was refused shuts out the small
-- ones after it, and every refusal is a write.
local used = redis.call('INCRBY', KEYS[1], ARGV[3])
if used == tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local allowed = 0
if used <= tonumber(ARGV[1]) then
  allowed = 1
end
return {allowed, used, redis.call('PTTL', KEYS[1])}
