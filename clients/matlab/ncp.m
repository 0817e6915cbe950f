function r = ncp(X, varargin)
%NCP Decompose a nonnegative tensor on a sparse-ncp server.
%
%   Syntax
%     r = ncp(X, 'rank', R)
%     r = ncp(X, 'rank', R, Name, Value, ...)
%
%   Inputs
%     X              array of any order, or the name of a .npy file
%     'rank'         number of components allowed
%     'axes'         labels: a cell array with one struct (name, unit, values) per mode
%     'progress'     true (default) prints progress, false prints nothing
%     'url', 'key'   address of the server and API key; by default the variables NCP_URL and NCP_KEY, or as stored by
%                    ncp login
%     Name, Value    any other field of a job, such as 'sparsity', 'method' or 'stop'. Without 'method' the recommended
%                    settings are used.
%
%   Outputs
%     r.factors      cell array with one matrix (length x rank) per mode
%     r.job          record of the job: state, settings, result ...
%     r.tensor       record of the tensor
%
%   The job continues if you interrupt the call; ncp_watch(id) waits for it again.
%
%   Example
%     r = ncp(rand(30, 20, 10), 'rank', 4, 'sparsity', 0.02);
%     r.job.result.relative_error
%
%   See also NCP_UPLOAD, NCP_SUBMIT, NCP_WATCH, NCP_FACTORS, NCP_STUDY.
  [server, options] = ncp_options(varargin);
  [progress, options] = ncp_take(options, 'progress', true);
  [axes, options] = ncp_take(options, 'axes', {});
  name = '';
  if isfield(options, 'name')
    name = options.name;
  end
  where = {'url', server.url, 'key', server.key};
  r.tensor = ncp_upload(X, where{:}, 'name', name, 'axes', axes);
  r.job = ncp_submit(r.tensor, where{:}, options);
  r.job = ncp_watch(r.job, where{:}, 'progress', progress);
  if ~strcmp(r.job.state, 'succeeded')
    if isempty(r.job.error)
      error('ncp:jobFailed', 'job %s is %s', r.job.id, r.job.state);
    end
    error('ncp:jobFailed', 'job %s failed: %s (%s)', r.job.id, r.job.error.message, r.job.error.remedy);
  end
  r.factors = ncp_factors(r.job, where{:});
end
