-- id, owner, tensor_id, initial, priority, method, request, key, digest, key milliseconds, live limit, stored limit, mask,
-- fixed, folded name, bytes of the results, copies of the labels in them -> an outcome; 'made' and 'replayed' with what `read` gives of the job
local id, owner, tensor, initial, priority, method, request, idempotency, digest, keep, live, stored, mask, fixed,
  folded, nbytes, copies = unpack(ARGV)
if redis.call('EXISTS', key('job', id)) == 1 then return { 'made', read(id, queue_lengths()) } end
if idempotency ~= '' then
  local earlier = redis.call('HMGET', idempotency, 'digest', 'job')
  if earlier[1] and not same_request(earlier[1], digest) then return { 'reused' } end
  if earlier[1] then return { 'replayed', read(earlier[2], queue_lengths()) } end
end
local named = {
  { 'tensor', tensor, 'tensor' }, { 'job', initial, 'initial' }, { 'tensor', mask, 'mask' }, { 'job', fixed, 'fixed' },
}
local needed = nbytes + copies * (redis.call('HGET', key('tensor', tensor), 'axes_nbytes') or 0)
local refused = refusal(owner, named, live, stored, '', 0, needed)
if refused then return refused end
local record = input_fields(tensor, initial, mask, fixed)
for name, value in pairs({ version = FIRST_VERSION, owner = owner, sequence = redis.call('INCR', SEQUENCE), priority = priority,
  method = method, request = request, created_at = now() }) do
  table.insert(record, name)
  table.insert(record, value)
end
if stored ~= '' then
  table.insert(record, 'quota')
  table.insert(record, stored)
end
create(id, record, redis.call('HGET', key('tensor', tensor), 'axes'))
reserve(key('job', id), owner, needed)
redis.call('HSET', names_of('job', owner), id, folded)
if idempotency ~= '' then
  redis.call('HSET', idempotency, 'digest', digest, 'job', id)
  redis.call('PEXPIRE', idempotency, keep)
  set(id, 'key', idempotency)
end
return { 'made', read(id, queue_lengths()) }
