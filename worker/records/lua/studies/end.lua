-- id, recommendation or '' -> whether this call ended the comparison. The recommendation is stored before its end is announced.
local id, recommendation = unpack(ARGV)
if redis.call('ZREM', ENDING, id) == 0 then return 0 end
if recommendation ~= '' then redis.call('HSET', key('study', id), 'recommendation', recommendation) end
redis.call('HDEL', key('study', id), 'ending_attempts')
end_study(id)
return 1
