#!lua flags=allow-oom
-- id, fence, lease milliseconds, seconds spent -> lost, held or cancel_requested
local id, fence, lease, spent = unpack(ARGV)
if not holds_claim(id, fence) then return 'lost' end
redis.call('ZADD', LEASES, now() + lease, id)
if tonumber(spent) > number(id, 'spent') then set(id, 'spent', spent) end
return field(id, 'cancel_requested') == '1' and 'cancel_requested' or 'held'
