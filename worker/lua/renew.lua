-- id, fence, lease milliseconds -> lost, kept or cancel
local id, fence, lease = unpack(ARGV)
if not holds(id, fence) then return 'lost' end
redis.call('ZADD', LEASES, now() + lease, id)
return field(id, 'cancel_requested') == '1' and 'cancel' or 'kept'
