-- id, fence, preparation -> whether it was kept: what the job does before its first sweep ends. Empty: nothing any more.
local id, fence, preparation = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
if preparation == '' then
  redis.call('HDEL', key('job', id), 'preparing')
else
  set(id, 'preparing', preparation)
  redis.call('XADD', PREPARING, 'MAXLEN', '~', 1000, '*', 'id', id, 'payload', preparation)
end
return 1
