function [value, options] = ncp_take(options, name, default)
%NCP_TAKE Remove an option from a struct and return its value.
  value = default;
  if isfield(options, name)
    value = options.(name);
    options = rmfield(options, name);
  end
end
