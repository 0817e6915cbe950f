#!lua flags=no-writes
-- owners -> of each: counters in turn, queued jobs, running jobs, live jobs, live studies, live runs
local answer = {}
for _, owner in ipairs(ARGV) do
  local jobs, runs = live_jobs(owner)
  table.insert(answer, {
    redis.call('HGETALL', key('usage', owner)),
    redis.call('ZCARD', key('queue', owner)) + tonumber(redis.call('HGET', PLANNED, owner) or 0),
    redis.call('SMEMBERS', key('running', owner)),
    jobs,
    redis.call('SCARD', key('live', owner)),
    runs,
  })
end
return answer
