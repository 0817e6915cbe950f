function job = ncp_submit(tensor, varargin)
%NCP_SUBMIT Queue a decomposition and return the job's record.
%   job = ncp_submit(tensor, 'rank', 8, 'sparsity', 0.02) takes what NCP_UPLOAD returned, or a tensor's id, and every
%   field of a job by its name; 'stop' is a struct, 'initial' a job or its id. 'url' and 'key' name the server as in NCP.
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
  job = ncp_request(server, 'POST', '/v1/jobs', struct('json', jsonencode(fields), 'idempotency_key', ncp_once()));
end
