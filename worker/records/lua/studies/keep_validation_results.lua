-- id of the run, fence, what the validations have found so far -> whether it was kept
local id, fence, checked = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
redis.call('HSET', key('study', field(id, 'study_id')), 'checked', checked)
return 1
