-- id, id of an event, the id after it: the store has this event and all before it, so they are removed from the
-- stream. Readers of the stream read `collected` afterwards. -> whether the job still runs
local id, last, following = unpack(ARGV)
if field(id, 'state') ~= 'running' then return 0 end
set(id, 'collected', last, 'shared', 0) -- a process of many runs keeps their events to itself
redis.call('XTRIM', key('events', id), 'MINID', following)
return 1
