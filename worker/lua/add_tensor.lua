-- id, owner, sha256, record, nbytes, stored limit -> added, or full and what is stored
local id, owner, sha256, record, nbytes, limit = unpack(ARGV)
local stored = stored_bytes(owner)
if limit ~= '' and stored + nbytes > tonumber(limit) then return { 'full', stored } end
redis.call('HSET', key('tensor', id), 'owner', owner, 'sha256', sha256, 'nbytes', nbytes, 'record', record,
  'used_at', now())
redis.call('ZADD', key('tensors', owner), redis.call('INCR', 'ncp:sequence'), id)
redis.call('SADD', key('content', sha256), id)
redis.call('SADD', 'ncp:owners', owner)
count(owner, 'tensor_bytes', nbytes)
return { 'added' }
