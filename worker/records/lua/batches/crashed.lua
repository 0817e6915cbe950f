-- batch, how, whether by itself: the process of these runs died. Which of several was to blame is not known, so each
-- goes on in a process of its own.
local batch, how, is_own_fault = unpack(ARGV)
local held = redis.call('SMEMBERS', key('batch', batch))
for _, id in ipairs(held) do
  if is_own_fault == '1' then set(id, 'shared', 0) end
  if is_own_fault == '1' and #held == 1 then crash(id, how) else requeue(id) end
end
return #held
