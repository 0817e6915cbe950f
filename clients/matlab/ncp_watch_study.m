function study = ncp_watch_study(study, varargin)
%NCP_WATCH_STUDY Wait until a study has ended.
%
%   Syntax
%     study = ncp_watch_study(study)
%     study = ncp_watch_study(study, Name, Value, ...)
%
%   Inputs
%     study          record or id of a study
%     'timeout'      longest time to wait, in seconds; the study continues after a timeout
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     study                record of the study
%     study.table.rows     comparison: one entry per rank, method and weight, over the repeats
%     study.table.ranks    comparison: core consistency and validations of each rank
%     study.recommendation comparison: recommended rank, weight and method, with the evidence
%     study.advice         choice: number of components, confidence and reason
%     study.job_id         choice: job with the chosen model, for NCP_FACTORS
%
%   Example
%     study = ncp_watch_study(ncp_study(tensor, 'choose', 'rank', 8));
%     ncp_advice(study)
%
%   See also NCP_STUDY, NCP_ADVICE, NCP_FACTORS.
  [server, options] = ncp_options(varargin);
  [timeout, ~] = ncp_take(options, 'timeout', Inf);
  if isstruct(study)
    study = study.id;
  end
  id = char(study);
  began = tic();
  pause_seconds = 0.2;
  while true
    study = ncp_request(server, 'GET', ['/v1/studies/' ncp_escape(id)]);
    if ~any(strcmp(study.state, {'queued', 'running'}))
      return
    end
    if toc(began) > timeout
      error('ncp:timeout', 'study %s has not ended within %g s; it continues on the server', id, timeout);
    end
    pause(pause_seconds);
    pause_seconds = min(2, 1.5 * pause_seconds);
  end
end
