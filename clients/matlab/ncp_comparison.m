function comparison = ncp_comparison(job, other, varargin)
%NCP_COMPARISON Compare the models of two jobs side by side, such as before and after samples were left out.
%
%   Syntax
%     comparison = ncp_comparison(job, other)
%     comparison = ncp_comparison(job, other, Name, Value, ...)
%
%   Inputs
%     job, other     records or ids of two jobs that have ended
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     comparison     struct: matched components with their congruence and weights in 'components', the errors and core
%                    consistencies of both, and in 'left_out' the scores of indices that only one job has fitted
%
%   Example
%     after = ncp_watch(ncp_submit(tensor, 'rank', 4, 'exclude', {[2 5]}));
%     comparison = ncp_comparison(after, before);
%     [comparison.components.congruence]
%
%   See also NCP_SUBMIT, NCP_DIAGNOSTICS.
  server = ncp_options(varargin);
  if isstruct(job)
    job = job.id;
  end
  if isstruct(other)
    other = other.id;
  end
  target = ['/v1/jobs/' ncp_escape(char(job)) '/comparison?other=' ncp_escape(char(other))];
  comparison = ncp_request(server, 'GET', target);
end
