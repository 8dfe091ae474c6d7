-- A token bucket in a hash of two fields: the level and when it was last reckoned, in µs of the server's time.
--
--   KEYS[1]  the bucket
--   ARGV[1]  capacity
--   ARGV[2]  tokens that come back per period
--   ARGV[3]  period in ms
--   ARGV[4]  tokens of this call
--   returns  {allowed 1 or 0, whole tokens left}
--
-- What it is known for: the level is a float that is written, as text of 14 digits, at every call, a refused one included. So
-- where the bucket is large or the call comes soon, what has accrued since the last call is rounded away, and whoever asks
-- often enough gets nothing back.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[4])
local rate = tonumber(ARGV[2]) / (tonumber(ARGV[3]) * 1000)
local state = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = capacity
if state[1] then
  local elapsed = math.max(0, now - tonumber(state[2]))
  level = math.min(capacity, tonumber(state[1]) + elapsed * rate)
end
local allowed = 0
if level >= cost then
  allowed = 1
  level = level - cost
end
redis.call('HSET', KEYS[1], 'level', tostring(level), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate / 1000))
return {allowed, string.format('%.0f', math.floor(level))}
