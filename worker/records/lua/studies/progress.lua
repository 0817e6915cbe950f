-- id of the run, fence, stage, progress -> whether it was kept: how far a choice has come
local id, fence, stage, progress = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
local study = field(id, 'study_id')
if study_field(study, 'stage') == stage and study_field(study, 'progress') == progress then return 1 end
-- A resumed choice repeats steps that were published before.
if tonumber(progress) < tonumber(study_field(study, 'progress') or 0) then return 1 end
redis.call('HSET', key('study', study), 'stage', stage, 'progress', progress)
announce_study(study, 'progress', '{"stage":"' .. stage .. '","progress":' .. progress .. '}')
return 1
