#!lua flags=allow-oom
-- owner, id
local owner, id = unpack(ARGV)
record_ahead(owner, id)
if field(id, 'owner') ~= owner then return 0 end
local state = field(id, 'state')
if state == 'queued' or state == 'running' then set(id, 'cancel_requested', 1) end
if state == 'queued' then finish(id, 'cancelled', '', '') end
return 1
