-- id, owner, tensor_id, initial, priority, method, request, key, digest, key milliseconds, live limit, stored limit
local id, owner, tensor, initial, priority, method, request, idempotency, digest, keep, live, stored = unpack(ARGV)
if redis.call('EXISTS', key('job', id)) == 1 then return { 'made', id } end
if idempotency ~= '' then
  local earlier = redis.call('HMGET', idempotency, 'digest', 'job')
  if earlier[1] then return { earlier[1] == digest and 'replayed' or 'reused', earlier[2] } end
end
if redis.call('HGET', key('tensor', tensor), 'owner') ~= owner then return { 'no tensor' } end
if initial ~= '' and field(initial, 'owner') ~= owner then return { 'no initial' } end
if live ~= '' and live_jobs(owner) >= tonumber(live) then return { 'busy' } end
if stored ~= '' and stored_bytes(owner) >= tonumber(stored) then return { 'full', stored_bytes(owner) } end
local sequence = redis.call('INCR', 'ncp:sequence')
set(id, 'id', id, 'owner', owner, 'sequence', sequence, 'priority', priority, 'method', method, 'tensor_id', tensor,
  'sha256', redis.call('HGET', key('tensor', tensor), 'sha256'), 'request', request, 'attempt', 0, 'fence', 0,
  'published', 0, 'created_at', now())
if initial ~= '' then set(id, 'initial', initial) end
for _, users in ipairs(needs(id)) do redis.call('SADD', users, id) end
use(tensor)
redis.call('ZADD', key('jobs', owner), sequence, id)
if idempotency ~= '' then
  redis.call('HSET', idempotency, 'digest', digest, 'job', id)
  redis.call('PEXPIRE', idempotency, keep)
  set(id, 'key', idempotency)
end
enqueue(id)
return { 'made', id }
