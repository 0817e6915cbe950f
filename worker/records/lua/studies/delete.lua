#!lua flags=allow-oom
-- owner, id -> outcome. The study can no longer be read. Its runs are deleted next, by the caller or by a cleanup.
local owner, id = unpack(ARGV)
local state = study_field(id, 'state')
if study_field(id, 'owner') ~= owner or state == 'deleted' then return 'missing' end
if state == 'queued' or state == 'running' then return 'live' end
for _, run in ipairs(redis.call('LRANGE', key('runs', id), 0, -1)) do
  if redis.call('SCARD', key('users', run)) > 0 then return 'used' end
end
local idempotency = study_field(id, 'key')
if idempotency and redis.call('HGET', idempotency, 'study') == id then redis.call('DEL', idempotency) end
redis.call('HSET', key('study', id), 'state', 'deleted')
redis.call('ZREM', key('studies', owner), id)
discard('study', id)
return 'deleted'
