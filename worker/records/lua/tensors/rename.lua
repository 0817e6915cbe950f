-- owner, id, the record with its new name, that name folded for searching -> 0 if there is none
local owner, id, record, folded = unpack(ARGV)
if redis.call('HGET', key('tensor', id), 'owner') ~= owner then return 0 end
redis.call('HSET', key('tensor', id), 'record', record)
redis.call('HSET', names_of('tensor', owner), id, folded)
return 1
