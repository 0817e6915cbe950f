-- latest: attempts whose lease ran out by then died with their worker; '+inf' means every attempt
local dead = redis.call('ZRANGEBYSCORE', LEASES, '-inf', ARGV[1])
if ARGV[1] ~= '+inf' and #dead > 0 then tally('expired_leases', #dead) end
for _, id in ipairs(dead) do crash(id, 'its worker fell silent') end
return dead
