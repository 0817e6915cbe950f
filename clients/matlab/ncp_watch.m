function [job, history] = ncp_watch(job, varargin)
%NCP_WATCH Wait until a job has ended.
%
%   Syntax
%     [job, history] = ncp_watch(job)
%     [job, history] = ncp_watch(job, Name, Value, ...)
%
%   Inputs
%     job            record or id of a job
%     'progress'     false (default), true to print progress, or a function that is called with each iteration
%     'timeout'      longest time to wait, in seconds; the job continues after a timeout
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     job            record of the job
%     history        struct array with one entry per iteration
%
%   Requests are retried for ten minutes while the server is unavailable.
%
%   Example
%     [job, history] = ncp_watch(job, 'timeout', 120);
%     semilogy([history.objective])
%
%   See also NCP_SUBMIT, NCP_FACTORS.
  [server, options] = ncp_options(varargin);
  [progress, options] = ncp_take(options, 'progress', false);
  [timeout, ~] = ncp_take(options, 'timeout', Inf);
  if isstruct(job)
    job = job.id;
  end
  id = char(job);
  history = [];
  shown = '';
  began = tic();
  printed = tic();
  pause_seconds = 0.1;
  while true
    job = ncp_request(server, 'GET', ['/v1/jobs/' ncp_escape(id)]);  % before its history, which is then complete
    rows = later_rows(server, id, history);
    for place = 1:numel(rows)
      if isa(progress, 'function_handle')
        progress(rows(place));
      end
    end
    history = joined(history, rows);
    if ~isempty(rows) && isequal(progress, true) && toc(printed) > 2
      printed = tic();
      fprintf('iteration %d, objective %.6g, relative error %.6f\n', ...
              rows(end).iteration, rows(end).objective, rows(end).relative_error);
    end
    if isequal(progress, true)
      message = '';
      if isfield(job, 'paused') && isstruct(job.paused)
        message = job.paused.message;
      end
      if ~isempty(message) && ~strcmp(message, shown)
        fprintf('job %s %s\n', id, message);
      end
      shown = message;
    end
    if any(strcmp(job.state, {'succeeded', 'failed', 'cancelled'}))
      return
    end
    if toc(began) > timeout
      error('ncp:timeout', 'job %s has not ended within %g s; it continues on the server', id, timeout);
    end
    pause(pause_seconds);
    pause_seconds = min(1, 1.5 * pause_seconds);
  end
end

function rows = later_rows(server, id, history)
  last = 0;
  if ~isempty(history)
    last = history(end).iteration;
  end
  rows = [];
  more = true;
  while more
    [page, headers] = ncp_request(server, 'GET', sprintf('/v1/jobs/%s/history?after=%d', ncp_escape(id), last));
    rows = joined(rows, page(:));
    more = ~isempty(page) && ~isempty(regexpi(headers, '^link:.*rel="?next"?', 'once', 'lineanchors', 'dotexceptnewline'));
    if more
      last = rows(end).iteration;
    end
  end
end

function rows = joined(rows, more)
  if isempty(rows)
    rows = more;
  elseif ~isempty(more)
    rows = [rows; more];
  end
end
