#!lua flags=allow-oom
-- owner, id, latest use ('' for any) -> outcome, and the digest if no record names these bytes any more
local owner, id, latest = unpack(ARGV)
if redis.call('HGET', key('tensor', id), 'owner') ~= owner then return { 'missing' } end
if redis.call('SCARD', key('users', id)) > 0 then return { 'used' } end
if latest ~= '' and used_at(id) > tonumber(latest) then return { 'used' } end
local sha256 = redis.call('HGET', key('tensor', id), 'sha256')
add_usage(owner, 'tensor_bytes', 0 - tonumber(redis.call('HGET', key('tensor', id), 'nbytes') or 0))
unlabel(key('tensor', id))
redis.call('DEL', key('tensor', id))
redis.call('ZREM', key('tensors', owner), id)
redis.call('HDEL', names_of('tensor', owner), id)
redis.call('SREM', key('content', sha256), id)
if redis.call('SCARD', key('content', sha256)) == 0 then
  discard('content', sha256)
  redis.call('SREM', UNINSPECTED, sha256)
  return { 'deleted', sha256 }
end
return { 'deleted' }
