function tensor = ncp_upload(X, varargin)
%NCP_UPLOAD Upload an array, or the .npy file with this name, and return the tensor's record.
%   tensor = ncp_upload(X, 'name', 'first', 'axes', {struct('name', 'emission', 'unit', 'nm', 'values', 250:350), ...})
%   'url' and 'key' name the server as in NCP. Arrays of any order, real, of any numeric class or logical.
  [server, options] = ncp_options(varargin);
  if ischar(X) || isa(X, 'string')
    path = char(X);
    if ~exist(path, 'file')
      error('ncp:noFile', 'there is no file %s', path);
    end
  else
    path = [tempname() '.npy'];
    cleaner = onCleanup(@() delete(path));
    ncp_write_npy(path, X);
  end
  target = '/v1/tensors';
  if isfield(options, 'name') && ~isempty(options.name)
    target = [target '?name=' ncp_escape(options.name)];
  end
  tensor = ncp_request(server, 'POST', target, struct('file', path));
  if isfield(options, 'axes') && ~isempty(options.axes)
    labels = options.axes;
    for mode = 1:numel(labels)
      if isfield(labels{mode}, 'values') && isnumeric(labels{mode}.values)
        labels{mode}.values = num2cell(labels{mode}.values(:)');  % a list, of one value too
      end
    end
    ncp_request(server, 'PUT', ['/v1/tensors/' tensor.id '/axes'], struct('json', jsonencode(labels)));
    tensor = ncp_request(server, 'GET', ['/v1/tensors/' tensor.id]);
  end
end
