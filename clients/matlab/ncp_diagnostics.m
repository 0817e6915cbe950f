function diagnostics = ncp_diagnostics(job, varargin)
%NCP_DIAGNOSTICS Return the diagnostics of a job that has ended.
%
%   Syntax
%     diagnostics = ncp_diagnostics(job)
%     diagnostics = ncp_diagnostics(job, Name, Value, ...)
%
%   Inputs
%     job            record or id of a job
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     diagnostics    struct: core consistency, shares and congruence of the components, residual and leverage of every
%                    index, and outlying samples in 'samples'. Indices count from 0, as in 'exclude'.
%
%   Example
%     diagnostics = ncp_diagnostics(job);
%     diagnostics.samples.outliers
%
%   See also NCP_SUBMIT, NCP_FACTORS, NCP_COMPARISON.
  server = ncp_options(varargin);
  if isstruct(job)
    job = job.id;
  end
  diagnostics = ncp_request(server, 'GET', ['/v1/jobs/' ncp_escape(char(job)) '/diagnostics']);
end
