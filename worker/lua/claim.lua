-- worker, lease milliseconds. Fair: the owner with the fewest running jobs, then the one served longest ago.
local worker, lease = unpack(ARGV)
local owner, fewest, oldest
for _, candidate in ipairs(redis.call('SMEMBERS', WAITING)) do
  local running = redis.call('SCARD', key('running', candidate))
  local served = tonumber(redis.call('ZSCORE', 'ncp:served', candidate) or 0)
  if not owner or running < fewest or (running == fewest and served < oldest) then
    owner, fewest, oldest = candidate, running, served
  end
end
if not owner then return false end
local id = redis.call('ZRANGE', key('queue', owner), 0, 0)[1]
leave_queue(id)
redis.call('ZADD', 'ncp:served', redis.call('INCR', 'ncp:serving'), owner)
redis.call('SADD', key('running', owner), id)
redis.call('ZADD', LEASES, now() + lease, id)
redis.call('HINCRBY', key('job', id), 'fence', 1)
redis.call('HINCRBY', key('job', id), 'attempt', 1)
redis.call('HSETNX', key('job', id), 'started_at', now())
set(id, 'worker', worker, 'claimed_from', math.max(number(id, 'published'), number(id, 'checkpoint_iteration')))
enter(id, 'running')
return redis.call('HGETALL', key('job', id))
