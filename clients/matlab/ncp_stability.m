function stability = ncp_stability(job, varargin)
%NCP_STABILITY Return the stability of the components and loadings of a job.
%
%   Syntax
%     stability = ncp_stability(job)
%     stability = ncp_stability(job, Name, Value, ...)
%
%   Inputs
%     job            record or id of a job that was submitted with 'stability', true
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     stability      struct with the replicability and split_half of every component, and in modes a cell array with the
%                    lower and upper bounds (length x rank) of the loadings of every mode; empty for the samples
%
%   Example
%     job = ncp_watch(ncp_submit(tensor, 'rank', 4, 'stability', true));
%     stability = ncp_stability(job);
%     stability.replicability
%
%   See also NCP_SUBMIT, NCP_WATCH, NCP_FACTORS.
  server = ncp_options(varargin);
  if isstruct(job)
    job = job.id;
  end
  stability = ncp_request(server, 'GET', ['/v1/jobs/' ncp_escape(char(job)) '/stability']);
end
