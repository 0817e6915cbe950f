-- owner, id, name as JSON, the same folded for searching -> 0 if there is none
local owner, id, name, folded = unpack(ARGV)
record_ahead(owner, id)
if field(id, 'owner') ~= owner then return 0 end
set(id, 'name', name)
redis.call('HSET', names_of('job', owner), id, folded)
return 1
