function json = ncp_exclusion(json, exclude)
%NCP_EXCLUSION Add what is excluded to the JSON of a request: modes are keys, which no struct can have.
  modes = {};
  for mode = 1:numel(exclude)
    entries = exclude{mode};
    if ischar(entries)
      entries = {entries};
    elseif ~iscell(entries)
      entries = num2cell(entries);
    end
    if ~isempty(entries)
      modes{end + 1} = sprintf('"%d":%s', mode, jsonencode(entries));
    end
  end
  if ~isempty(modes)
    json = [json(1:end - 1) ',"exclude":{' strjoin(modes, ',') '}}'];
  end
end
