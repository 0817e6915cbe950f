function fields = ncp_nulls(fields)
%NCP_NULLS Convert fields that are [] to NaN, which stands for null in JSON.
  names = fieldnames(fields);
  for k = 1:numel(names)
    if isnumeric(fields.(names{k})) && isempty(fields.(names{k}))
      fields.(names{k}) = NaN;
    end
  end
end
