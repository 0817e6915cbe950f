#!lua flags=allow-oom
-- owner, quota, requests per second -> granted or not, how many are left, seconds until there is one more
-- A bucket that fills steadily. It is not written to the disk: that would cost every request a flush.
redis.set_repl(redis.REPL_NONE)
local owner, quota, rate = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local bucket, time = key('rate', owner), now()
local seen = redis.call('HMGET', bucket, 'left', 'at')
local passed = math.max(0, time - tonumber(seen[2] or time)) / 1000
local left = math.min(quota, tonumber(seen[1] or quota) + passed * rate)
local granted = left >= 1
if granted then left = left - 1 end
redis.call('HSET', bucket, 'left', left, 'at', time)
redis.call('PEXPIRE', bucket, math.ceil(quota / rate * 1000))
return { granted and 1 or 0, math.floor(left), math.ceil((1 - left % 1) / rate) }
