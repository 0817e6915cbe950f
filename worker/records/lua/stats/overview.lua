#!lua flags=no-writes
-- lease milliseconds -> queued, milliseconds the oldest has waited, running, live workers, then counters in turn
local lease = ARGV[1]
local queued = 0
for _, length in pairs(queue_lengths()) do queued = queued + length end
local oldest = redis.call('ZRANGE', QUEUED, 0, 0, 'WITHSCORES')[2]
local answer = {
  queued,
  oldest and math.max(0, now() - oldest) or 0,
  redis.call('ZCARD', LEASES),
  redis.call('ZCOUNT', WORKERS, now() - lease, now() + lease),
}
for _, part in ipairs(redis.call('HGETALL', COUNTS)) do table.insert(answer, part) end
return answer
