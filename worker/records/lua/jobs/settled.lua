-- id, seconds, nbytes of its folder: the history is in the store, so the stream may go. 0 if the job was deleted meanwhile.
local id, seconds, nbytes = unpack(ARGV)
redis.call('SREM', UNSETTLED, id)
if redis.call('EXISTS', key('job', id)) == 0 then return 0 end
add_usage(field(id, 'owner'), 'result_bytes', nbytes - number(id, 'nbytes'))
release_reserved(key('job', id), field(id, 'owner'))
set(id, 'settled', 1, 'nbytes', nbytes)
redis.call('EXPIRE', key('events', id), seconds)
compact(id)
return 1
