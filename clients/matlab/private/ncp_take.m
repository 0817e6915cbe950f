function [value, options] = ncp_take(options, name, default)
%NCP_TAKE One option, and those that are left.
  value = default;
  if isfield(options, name)
    value = options.(name);
    options = rmfield(options, name);
  end
end
