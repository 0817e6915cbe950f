function key = ncp_once()
%NCP_ONCE Create an idempotency key, with which a repeated request does not create a second job.
  [~, one] = fileparts(tempname());
  [~, two] = fileparts(tempname());
  key = sprintf('%s%s%.0f', one, two, now() * 864e5);
end
