function tensor = ncp_upload(X, varargin)
%NCP_UPLOAD Upload a tensor.
%
%   Syntax
%     tensor = ncp_upload(X)
%     tensor = ncp_upload(X, Name, Value, ...)
%
%   Inputs
%     X              real or logical array of any order, or the name of a .npy file
%     'name'         name of the tensor
%     'axes'         labels: a cell array with one struct (name, unit, values) per mode
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     tensor         record of the tensor
%
%   Example
%     tensor = ncp_upload(rand(30, 20), 'name', 'first', 'axes', {struct('name', 'sample'), struct('name', 'time')});
%
%   See also NCP_SUBMIT.
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
        labels{mode}.values = num2cell(labels{mode}.values(:)');  % also a single value becomes a list
      end
    end
    ncp_request(server, 'PUT', ['/v1/tensors/' tensor.id '/axes'], struct('json', jsonencode(labels)));
    tensor = ncp_request(server, 'GET', ['/v1/tensors/' tensor.id]);
  end
end
