-- owner, id
local owner, id = unpack(ARGV)
if field(id, 'owner') ~= owner then return 'missing' end
local state = field(id, 'state')
if state == 'queued' or state == 'running' then return 'live' end
if redis.call('SCARD', key('users', id)) > 0 then return 'used' end
local idempotency = field(id, 'key')
if idempotency and redis.call('HGET', idempotency, 'job') == id then redis.call('DEL', idempotency) end
count(owner, state, -1)
count(owner, 'result_bytes', 0 - number(id, 'nbytes'))
redis.call('ZREM', key('jobs', owner), id)
redis.call('SREM', UNSETTLED, id)
redis.call('DEL', key('job', id), key('events', id))
discard('job', id)
return 'deleted'
