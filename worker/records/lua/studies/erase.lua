#!lua flags=allow-oom
-- id, how many -> the runs whose records were deleted just now; after the last of them that of the study goes too.
local id, many = ARGV[1], tonumber(ARGV[2])
if study_field(id, 'state') ~= 'deleted' then return {} end
local runs = redis.call('LRANGE', key('runs', id), 0, many - 1)
for _, run in ipairs(runs) do
  if redis.call('EXISTS', key('job', run)) == 1 then delete_job(run) end
end
redis.call('LTRIM', key('runs', id), many, -1)
if #runs < many then
  local owner = study_field(id, 'owner')
  add_usage(owner, 'cancelled', 0 - (study_field(id, 'cancelled_unrecorded') or 0))
  redis.call('ZREM', key('plans', owner), id)
  unlabel(key('study', id))
  redis.call('DEL', key('study', id), key('runs', id), key('events', id), key('plan', id), key('rows', id))
end
return runs
