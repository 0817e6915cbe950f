function factors = ncp_factors(job, varargin)
%NCP_FACTORS The factors of a job: a cell with one matrix per mode, length x rank.
%   factors = ncp_factors(job) takes a job's record or id; while the job runs, they are its last checkpoint's.
%   'url' and 'key' name the server as in NCP.
  server = ncp_options(varargin);
  if isstruct(job)
    job = job.id;
  end
  path = [tempname() '.mat'];
  cleaner = onCleanup(@() delete(path));
  target = ['/v1/jobs/' ncp_escape(char(job)) '/factors?format=mat'];
  ncp_request(server, 'GET', target, struct('output', path));
  found = load(path);
  factors = {};
  while isfield(found, sprintf('A%d', numel(factors) + 1))
    factors{end + 1} = found.(sprintf('A%d', numel(factors) + 1));
  end
end
