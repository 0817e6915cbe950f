-- id, owner, kind, details, settings, priority, key, digest, key milliseconds, live limit, stored limit, tensor_id, initial, mask,
-- fixed, reference, its mode, then of each run: id, task, method, cell, repeat, shared, request
local id, owner, kind, details, settings, priority, idempotency, digest, keep, live, stored, tensor, initial, mask, fixed,
  reference, mode = unpack(ARGV, 1, 17)
if redis.call('EXISTS', key('study', id)) == 1 then return { 'made', id } end
if idempotency ~= '' then
  local earlier = redis.call('HMGET', idempotency, 'digest', 'study')
  if earlier[1] then return { earlier[1] == digest and 'replayed' or 'reused', earlier[2] } end
end
local named = {
  { 'tensor', tensor, 'tensor' }, { 'job', initial, 'initial' }, { 'tensor', mask, 'mask' }, { 'job', fixed, 'fixed' },
  { 'tensor', reference, 'reference' },
}
local refused = refusal(owner, named, live, stored)
if refused then return refused end
local inputs = { tensor_id = tensor }
if initial ~= '' then inputs.initial = initial end
if mask ~= '' then inputs.mask = mask end
if fixed ~= '' then inputs.fixed = fixed end
local runs, total = (#ARGV - 17) / 7, 0
local record = key('study', id)
redis.call('HSET', record, 'id', id, 'version', VERSION, 'owner', owner, 'kind', kind, 'details', details, 'settings', settings, 'priority', priority,
  'tensor_id', tensor, 'created_at', now(), 'left', runs, 'queued', 0, 'running', 0, 'succeeded', 0, 'failed', 0,
  'cancelled', 0)
if reference ~= '' then
  redis.call('HSET', record, 'reference', reference, 'reference_mode', mode, 'reference_sha256',
    redis.call('HGET', key('tensor', reference), 'sha256'))
  redis.call('SADD', key('users', reference), id)
  mark_used(reference)
end
redis.call('ZADD', key('studies', owner), redis.call('INCR', SEQUENCE), id)
redis.call('SADD', key('live', owner), id)
set_study_state(id, 'queued')
for place = 18, #ARGV, 7 do
  local run, task, method, cell, number_of_repeat, shared, request = unpack(ARGV, place, place + 6)
  if task ~= 'validate' then total = total + 1 end
  redis.call('RPUSH', key('runs', id), run)
  create(run, owner, priority, method, request, inputs,
    { 'study_id', id, 'task', task, 'cell', cell, 'repeat', number_of_repeat, 'shared', shared })
end
redis.call('HSET', record, 'total', total)
if idempotency ~= '' then
  redis.call('HSET', idempotency, 'digest', digest, 'study', id)
  redis.call('PEXPIRE', idempotency, keep)
  redis.call('HSET', record, 'key', idempotency)
end
return { 'made', id }
