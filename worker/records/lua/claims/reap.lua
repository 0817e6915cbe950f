-- latest, longest lease: attempts whose lease ran out by then died with their worker; '+inf' means every attempt
-- A lease beyond any that is given now was given before the clock stepped back: it runs from here.
if ARGV[1] ~= '+inf' then
  local furthest = now() + ARGV[2]
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '(' .. string.format('%.0f', furthest), '+inf')) do
    redis.call('ZADD', LEASES, furthest, id)
  end
end
local dead = redis.call('ZRANGEBYSCORE', LEASES, '-inf', ARGV[1])
if ARGV[1] ~= '+inf' and #dead > 0 then count_event('expired_leases', #dead) end
for _, id in ipairs(dead) do requeue(id, tonumber(redis.call('ZSCORE', LEASES, id))) end
return dead
