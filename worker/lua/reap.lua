-- all: attempts whose lease has run out died with their worker; with all = '1', every attempt did
local latest = ARGV[1] == '1' and '+inf' or now()
local dead = redis.call('ZRANGEBYSCORE', LEASES, '-inf', latest)
for _, id in ipairs(dead) do crash(id, 'its worker fell silent') end
return dead
