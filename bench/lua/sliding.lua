-- A sliding window as a log in a sorted set: one member a unit, its score the server's time in µs. Exact, and right as far as
-- it goes; it pays with over a hundred bytes a unit, and with as many ZADDs as a call has units.
--
--   KEYS[1]  the log
--   ARGV[1]  limit
--   ARGV[2]  window in ms
--   ARGV[3]  units of this call
--   returns  {allowed 1 or 0, units left}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local limit, cost = tonumber(ARGV[1]), tonumber(ARGV[3])
-- A hit at t counts while now - t < window.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[2]) * 1000))
local used = redis.call('ZCARD', KEYS[1])
if used + cost > limit then
  return {0, limit - used}
end
-- Two units in the same µs must not be one member: how many are there before it tells them apart.
local score = string.format('%.0f', now)
for unit = 1, cost do
  redis.call('ZADD', KEYS[1], score, score .. ':' .. (used + unit))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {1, limit - used - cost}
