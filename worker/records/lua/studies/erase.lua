-- id, how many -> the runs whose records were deleted just now; after the last of them that of the study goes too.
local id, many = ARGV[1], tonumber(ARGV[2])
if study_field(id, 'state') ~= 'deleted' then return {} end
local runs = redis.call('LRANGE', key('runs', id), 0, many - 1)
for _, run in ipairs(runs) do
  if redis.call('EXISTS', key('job', run)) == 1 then delete_job(run) end
end
redis.call('LTRIM', key('runs', id), many, -1)
if #runs < many then redis.call('DEL', key('study', id), key('runs', id), key('events', id)) end
return runs
