-- id, owner, sha256, record, nbytes, stored limit, folded name, upload whose reservation this ends
-- -> added, or full and what is stored
local id, owner, sha256, record, nbytes, limit, folded, upload = unpack(ARGV)
if redis.call('EXISTS', key('tensor', id)) == 1 then return { 'added' } end -- repeated, since its answer was lost
local stored = stored_bytes(owner)
if limit ~= '' and stored + nbytes > tonumber(limit) then return { 'full', stored } end
redis.call('HSET', key('tensor', id), 'version', FIRST_VERSION, 'owner', owner, 'sha256', sha256, 'nbytes', nbytes, 'record', record,
  'used_at', now())
redis.call('ZADD', key('tensors', owner), redis.call('INCR', SEQUENCE), id)
redis.call('HSET', names_of('tensor', owner), id, folded)
if redis.call('SADD', key('content', sha256), id) == 1 and redis.call('SCARD', key('content', sha256)) == 1 then
  redis.call('SADD', UNINSPECTED, sha256)
end
redis.call('SADD', OWNERS, owner)
add_usage(owner, 'tensor_bytes', nbytes)
if upload ~= '' then redis.call('HDEL', UPLOADS, upload) end
return { 'added' }
