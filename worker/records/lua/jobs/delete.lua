#!lua flags=allow-oom
-- owner, id
local owner, id = unpack(ARGV)
local planned = not field(id, 'owner') and plan_of(id)
if planned and study_field(planned, 'owner') == owner then return unrecorded(planned) > 0 and 'live' or 'run' end
if field(id, 'owner') ~= owner then return 'missing' end
local state, study = field(id, 'state'), field(id, 'study_id')
if state == 'queued' or state == 'running' then return 'live' end
if study and redis.call('EXISTS', key('study', study)) == 1 then return 'run' end
if redis.call('SCARD', key('users', id)) > 0 then return 'used' end
delete_job(id)
return 'deleted'
