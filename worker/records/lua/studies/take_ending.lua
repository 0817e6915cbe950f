-- lease in milliseconds -> a comparison that lacks only its recommendation, and how often it was taken; empty if none is due
local lease = tonumber(ARGV[1])
local due = redis.call('ZRANGEBYSCORE', ENDING, '-inf', now(), 'LIMIT', 0, 1)[1]
-- A lease that ends later was given before a backward step of the clock.
due = due or redis.call('ZRANGEBYSCORE', ENDING, '(' .. now() + lease, '+inf', 'LIMIT', 0, 1)[1]
if not due then return {} end
redis.call('ZADD', ENDING, now() + lease, due)
return { due, redis.call('HINCRBY', key('study', due), 'ending_attempts', 1) }
