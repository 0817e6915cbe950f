-- owner, id
local owner, id = unpack(ARGV)
if field(id, 'owner') ~= owner then return 'missing' end
local state, study = field(id, 'state'), field(id, 'study_id')
if state == 'queued' or state == 'running' then return 'live' end
if study and redis.call('EXISTS', key('study', study)) == 1 then return 'run' end
if redis.call('SCARD', key('users', id)) > 0 then return 'used' end
delete_job(id)
return 'deleted'
