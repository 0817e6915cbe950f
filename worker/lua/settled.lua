-- id, seconds: the history is in the store, so the stream may go. 0 if the job was deleted meanwhile.
local id, seconds = unpack(ARGV)
redis.call('SREM', UNSETTLED, id)
if redis.call('EXISTS', key('job', id)) == 0 then return 0 end
set(id, 'settled', 1)
redis.call('EXPIRE', key('events', id), seconds)
return 1
