-- batch, how, whether a run is at fault, crashes after which a job fails, seconds of a long attempt: the process of these
-- runs died. Which of several runs is at fault is unknown, so each continues in a process of its own.
local batch, how, is_own_fault, max_crashes, long_seconds = unpack(ARGV)
local held = redis.call('SMEMBERS', key('batch', batch))
for _, id in ipairs(held) do
  if is_own_fault == '1' then set(id, 'shared', 0) end
  if is_own_fault == '1' and #held == 1 then crash(id, how, max_crashes, long_seconds) else requeue(id) end
end
return #held
