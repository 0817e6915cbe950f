-- id of the run, fence, results of the validation checks that are done -> whether they were stored
local id, fence, checked = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
redis.call('HSET', key('study', field(id, 'study_id')), 'checked', checked)
return 1
