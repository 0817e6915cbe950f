-- id of the run, fence, advice, choice -> whether it was stored. The result of a choice, before its run ends.
local id, fence, advice, choice = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
redis.call('HSET', key('study', field(id, 'study_id')), 'advice', advice, 'choice', choice)
return 1
