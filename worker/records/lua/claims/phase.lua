-- id, fence, phase -> whether it was kept: what the job is doing, until it leaves its worker
local id, fence, phase = unpack(ARGV)
if not holds_claim(id, fence) then return 0 end
set(id, 'phase', phase)
return 1
