#!lua flags=allow-oom
-- owner, id, where to begin, how many runs to look at -> where to go on, or -1 at the end; -2 if there is no such study.
-- After the first call none of its runs starts.
local owner, id, from, many = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local state = study_field(id, 'state')
if study_field(id, 'owner') ~= owner or state == 'deleted' then return -2 end
if state ~= 'queued' and state ~= 'running' then return -1 end
redis.call('HSET', key('study', id), 'cancel_requested', 1)
cancel_plan(id)
local runs = redis.call('LRANGE', key('runs', id), from, from + many - 1)
for _, run in ipairs(runs) do
  local found = field(run, 'state')
  if found == 'queued' or found == 'running' then set(run, 'cancel_requested', 1) end
  if found == 'queued' then finish(run, 'cancelled', '', '') end
end
return #runs == many and from + many or -1
