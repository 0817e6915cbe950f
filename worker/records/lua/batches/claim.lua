-- batch, study, worker, lease milliseconds, how many -> further runs for the process of this batch, each as its fields.
-- None while another owner waits, and none beyond a job of the same owner that comes first.
local batch, study, worker, lease, wanted = unpack(ARGV)
local owner, claims = study_field(study, 'owner'), {}
if redis.call('HEXISTS', key('share', owner), 'held') == 1 then return claims end
for _, share in ipairs(waiting_shares()) do
  if share.owner ~= owner then return claims end
end
if study_field(study, 'cancel_requested') == '1' then return claims end
for _ = 1, wanted do
  local id = redis.call('ZRANGE', key('queue', owner), 0, 0)[1] -- the next run may have become a record just now
  if not id or field(id, 'study_id') ~= study or field(id, 'shared') ~= '1' or number(id, 'version') > VERSION then break end
  table.insert(claims, start_attempt(id, worker, lease, batch))
end
return claims
