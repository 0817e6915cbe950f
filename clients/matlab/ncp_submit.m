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
  % The same key for every repeat: a submission whose answer was lost is still one job.
  [~, one] = fileparts(tempname());
  [~, two] = fileparts(tempname());
  key = sprintf('%s%s%.0f', one, two, now() * 864e5);
  job = ncp_request(server, 'POST', '/v1/jobs', struct('json', jsonencode(fields), 'idempotency_key', key));
end
