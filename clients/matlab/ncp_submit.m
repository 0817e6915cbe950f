function job = ncp_submit(tensor, varargin)
%NCP_SUBMIT Queue the decomposition of a tensor.
%
%   Syntax
%     job = ncp_submit(tensor, 'rank', R)
%     job = ncp_submit(tensor, 'rank', R, Name, Value, ...)
%
%   Inputs
%     tensor         record or id of a tensor
%     'rank'         number of components allowed
%     Name, Value    any other field of a job; 'stop' is a struct, 'initial' a job or its id, and 'exclude' a cell array
%                    with the indices (from 0) or labels of each mode, such as {[2 5], [], 'blank'}; [] is null
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     job            record of the job
%
%   Example
%     job = ncp_submit(tensor, 'rank', 6, 'method', 'hals', 'stop', struct('max_iterations', 500));
%
%   See also NCP_UPLOAD, NCP_WATCH.
  [server, fields] = ncp_options(varargin);
  if isstruct(tensor)
    tensor = tensor.id;
  end
  fields.tensor_id = char(tensor);
  if ~isfield(fields, 'method') && ~isfield(fields, 'preset')
    fields.preset = 'recommended';
  end
  if isfield(fields, 'initial')
    fields.initial = ncp_reference(fields.initial, 'job_id');
  end
  exclude = {};
  if isfield(fields, 'exclude')
    exclude = fields.exclude;
    fields = rmfield(fields, 'exclude');
  end
  json = ncp_exclusion(jsonencode(ncp_nulls(fields)), exclude);
  job = ncp_request(server, 'POST', '/v1/jobs', struct('json', json, 'idempotency_key', ncp_once()));
end
