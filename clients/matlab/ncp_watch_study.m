function study = ncp_watch_study(study, varargin)
%NCP_WATCH_STUDY Wait until a study has ended and return its record.
%   study = ncp_watch_study(study) takes a study's record or id. 'timeout' is in seconds; the study goes on.
%     study.table.rows    of a comparison: one entry per rank, method and weight, over the repeats
%     study.table.ranks   what is known of each rank
%     study.advice        of a choice: how many components, how sure, and why
%     study.job_id        the job with the chosen model, for NCP_FACTORS
%   'url' and 'key' name the server as in NCP.
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
      error('ncp:timeout', 'study %s has not ended within %g s; it goes on on the server', id, timeout);
    end
    pause(pause_seconds);
    pause_seconds = min(2, 1.5 * pause_seconds);
  end
end
