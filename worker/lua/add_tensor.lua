-- id, owner, sha256, record
local id, owner, sha256, record = unpack(ARGV)
redis.call('HSET', key('tensor', id), 'owner', owner, 'sha256', sha256, 'record', record, 'used_at', now())
redis.call('ZADD', key('tensors', owner), redis.call('INCR', 'ncp:sequence'), id)
redis.call('SADD', key('content', sha256), id)
return 1
