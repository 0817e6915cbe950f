-- id, owner, kind, details, settings, priority, key, digest, key milliseconds, live limit, stored limit, limit on live
-- runs, tensor_id, initial, mask, fixed, reference, its mode, common part of requests, cells, repeats, runs, bytes of all results and of those that
-- run at the same time, copies of the labels in them, then the plan
local id, owner, kind, details, settings, priority, idempotency, digest, keep, live, stored, live_runs, tensor, initial,
  mask, fixed, reference, mode, common, cells, repeats, planned, nbytes, copies = unpack(ARGV, 1, 24)
local PLAN = 25
if redis.call('EXISTS', key('study', id)) == 1 then return { 'made', id } end
if idempotency ~= '' then
  local earlier = redis.call('HMGET', idempotency, 'digest', 'study')
  if earlier[1] then return { same_request(earlier[1], digest) and 'replayed' or 'reused', earlier[2] } end
end
local named = {
  { 'tensor', tensor, 'tensor' }, { 'job', initial, 'initial' }, { 'tensor', mask, 'mask' }, { 'job', fixed, 'fixed' },
  { 'tensor', reference, 'reference' },
}
local label_bytes = tonumber(redis.call('HGET', key('tensor', tensor), 'axes_nbytes') or 0)
local needed = nbytes + copies * label_bytes
local refused = refusal(owner, named, live, stored, live_runs, tonumber(planned), needed)
if refused then
  table.insert(refused, label_bytes)
  return refused
end
local record, total = key('study', id), cells * repeats
redis.call('HSET', record, 'id', id, 'version', VERSION, 'owner', owner, 'kind', kind, 'details', details, 'settings', settings, 'priority', priority,
  'created_at', now(), 'left', planned, 'queued', total, 'running', 0, 'succeeded', 0, 'failed', 0, 'cancelled', 0,
  'total', total, 'common', common, 'cells', cells, 'repeats', repeats, 'planned', planned, 'taken', 0, 'ahead', 0,
  unpack(input_fields(tensor, initial, mask, fixed)))
if stored ~= '' then redis.call('HSET', record, 'quota', stored) end
if label_bytes > 0 then redis.call('HSET', record, 'label_bytes', label_bytes) end
reserve(record, owner, needed)
local axes = redis.call('HGET', key('tensor', tensor), 'axes')
if axes then label(record, axes) end
if reference ~= '' then
  redis.call('HSET', record, 'reference', reference, 'reference_mode', mode, 'reference_sha256',
    redis.call('HGET', key('tensor', reference), 'sha256'))
  redis.call('SADD', key('users', reference), id)
  mark_used(reference)
end
redis.call('ZADD', key('studies', owner), redis.call('INCR', SEQUENCE), id)
redis.call('SADD', key('live', owner), id)
local base = redis.call('INCRBY', SEQUENCE, planned) - planned + 1
redis.call('HSET', record, 'base', base)
redis.call('ZADD', key('plans', owner), base, id)
redis.call('HINCRBY', PLANNED, owner, planned)
for place = PLAN, #ARGV, 1000 do
  redis.call('RPUSH', key('plan', id), unpack(ARGV, place, math.min(place + 999, #ARGV)))
end
set_study_state(id, 'queued')
record_next_run(id)
if idempotency ~= '' then
  redis.call('HSET', idempotency, 'digest', digest, 'study', id)
  redis.call('PEXPIRE', idempotency, keep)
  redis.call('HSET', record, 'key', idempotency)
end
return { 'made', id }
