-- seconds that streams stay, then of each run: id, fence, result, measures, resolved, iterations, last progress, nbytes.
-- All succeeded, and their factors and histories are in the store. -> for each, whether this claim ended it
local answer = {}
for place = 2, #ARGV, 8 do
  local id, fence, result, measures, resolved, iterations, progress, nbytes = unpack(ARGV, place, place + 7)
  if field(id, 'ended_by') == fence then
    table.insert(answer, 1)
  elseif holds_claim(id, fence) then
    count_event('iterations', iterations - number(id, 'published'))
    if tonumber(iterations) > number(id, 'published') then set(id, 'changes', 0) end
    set(id, 'ended_by', fence, 'measures', measures, 'resolved', resolved, 'published', iterations, 'progress', progress,
      'settled', 1, 'nbytes', nbytes)
    finish(id, 'succeeded', result, '')
    add_usage(field(id, 'owner'), 'result_bytes', nbytes)
    release_reserved(key('job', id), field(id, 'owner'))
    redis.call('EXPIRE', key('events', id), ARGV[1])
    compact(id)
    table.insert(answer, 1)
  else
    table.insert(answer, 0)
  end
end
return answer
