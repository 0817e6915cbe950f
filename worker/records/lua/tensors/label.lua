-- owner, id, digest, axes, stored limit, limit on labels -> labelled, missing, or full or crowded and what is stored. They
-- count as bytes of the tensor.
local owner, id, digest, axes, limit, label_limit = unpack(ARGV)
local record = key('tensor', id)
if redis.call('HGET', record, 'owner') ~= owner then return { 'missing' } end
local more = #axes - tonumber(redis.call('HGET', record, 'axes_nbytes') or 0)
local stored = stored_bytes(owner)
if limit ~= '' and more > 0 and stored + more > tonumber(limit) then return { 'full', stored } end
local held = tonumber(redis.call('HGET', key('usage', owner), 'label_bytes') or 0)
local is_new = redis.call('HEXISTS', key('labels', owner), digest) == 0
if label_limit ~= '' and is_new and held + #axes > tonumber(label_limit) then return { 'crowded', held } end
unlabel(record)
redis.call('SET', key('axes', digest), axes)
label(record, digest)
redis.call('HSET', record, 'axes_nbytes', #axes)
redis.call('HINCRBY', record, 'nbytes', more)
add_usage(owner, 'tensor_bytes', more)
mark_used(id)
return { 'labelled' }
