function factors = ncp_factors(job, varargin)
%NCP_FACTORS Download the factors of a job.
%
%   Syntax
%     factors = ncp_factors(job)
%     factors = ncp_factors(job, Name, Value, ...)
%
%   Inputs
%     job            record or id of a job; while it is running, the factors are those of its last checkpoint
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     factors        cell array with one matrix (length x rank) per mode
%
%   Example
%     factors = ncp_factors(job);
%     plot(factors{1})
%
%   See also NCP, NCP_WATCH.
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
