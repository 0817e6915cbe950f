#!lua flags=allow-oom
-- id, fence, name, iteration -> whether the record now points to it
local id, fence, name, iteration = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
set(id, 'checkpoint', name, 'checkpoint_iteration', iteration)
return 1
