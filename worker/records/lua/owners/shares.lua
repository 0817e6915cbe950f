#!lua flags=no-writes
-- Every owner with live jobs, recent computing time, or a setting of the operator -> for each: name, weight, workers in use,
-- queued jobs, recent computing seconds, account, why paused ('' if not)
local names, answer = {}, {}
for _, set_of_owners in ipairs({ OWNERS, ACTIVE, WAITING }) do
  for _, owner in ipairs(redis.call('SMEMBERS', set_of_owners)) do names[owner] = true end
end
for owner in pairs(names) do
  local share = share_of(owner)
  table.insert(answer, { owner, tostring(share.weight), share.workers, share.queued, string.format('%.3f', share.recent),
    string.format('%.3f', share.account), share.held or '' })
end
return answer
