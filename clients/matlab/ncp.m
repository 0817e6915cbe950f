function r = ncp(X, varargin)
%NCP Decompose a nonnegative tensor on a sparse-ncp server.
%   r = ncp(X, 'rank', 8, 'sparsity', 0.02) uploads X, submits the job, waits and returns
%     r.factors   a cell with one matrix per mode, length x rank
%     r.job       the job's record: state, settings, result ...
%     r.tensor    the tensor's record
%   X is an array of any order, or the name of a .npy file. Every field of a job can be given by its name. Also:
%     'url', 'key'       the server; NCP_URL and NCP_KEY, or what ncp login stored, if left out
%     'axes'             labels: a cell of structs with name, unit and values, one per mode
%     'progress'         false says nothing; true, the default, prints a line now and then
%   Without 'method' it is the recommended setting. The job goes on if you interrupt: ncp_watch(id) joins again.
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
