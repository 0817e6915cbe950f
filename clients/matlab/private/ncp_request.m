function [answer, headers] = ncp_request(server, method, target, what)
%NCP_REQUEST Send a request; if the server refuses it, raise the error that it describes.
%   what.file              file to send
%   what.json              JSON to send
%   what.output            file for the body of the response
%   what.idempotency_key   key with which the request may be repeated
%   Requests that are safe to repeat are retried for ten minutes while the server is unavailable.
  if nargin < 4
    what = struct();
  end
  repeatable = strcmp(method, 'GET') || strcmp(method, 'PUT') || isfield(what, 'idempotency_key');
  given = {};
  if ~isempty(server.key)
    given(end + 1, :) = {'Authorization', ['Bearer ' server.key]};
  end
  if isfield(what, 'json')
    given(end + 1, :) = {'Content-Type', 'application/json'};
  elseif isfield(what, 'file')
    given(end + 1, :) = {'Content-Type', 'application/octet-stream'};
  end
  if isfield(what, 'idempotency_key')
    given(end + 1, :) = {'Idempotency-Key', what.idempotency_key};
  end
  persistent reached
  if isempty(reached)
    reached = {};
  end
  began = tic();
  wait = 0.2;
  while true
    if exist('OCTAVE_VERSION', 'builtin')
      [status, headers, body, reason] = ncp_send_with_curl([server.url target], method, given, what);
    else
      [status, headers, body, reason] = ncp_send_with_matlab([server.url target], method, given, what);
    end
    away = any(status == [0 502 503 504]);
    known = any(strcmp(server.url, reached));
    if status ~= 0
      reached = unique([reached {server.url}]);
    end
    too_fast = status == 429 && ~isempty(strfind(char(body), ':too-fast'));
    if ~((away && repeatable && known) || too_fast) || toc(began) > 600
      break
    end
    pause(max(wait, retry_after(headers)));
    wait = min(5, 2 * wait);
  end
  if status == 0
    error('ncp:unavailable', 'no server answers at %s: %s', server.url, reason);
  elseif status >= 300
    refuse(server, status, headers, body);
  end
  answer = [];
  if ~isfield(what, 'output') && ~isempty(body)
    answer = jsondecode(native2unicode(body(:)', 'UTF-8'));
  end
end

function seconds = retry_after(headers)
  found = regexpi(headers, '^retry-after:\s*(\d+)', 'tokens', 'once', 'lineanchors');
  seconds = 0;
  if ~isempty(found)
    seconds = str2double(found{1});
  end
end

function refuse(server, status, headers, body)
  if isempty(regexpi(headers, '^content-type:\s*application/problem\+json', 'once', 'lineanchors'))
    error('ncp:unavailable', '%s is not a sparse-ncp server (HTTP %d)', server.url, status);
  end
  problem = jsondecode(native2unicode(body(:)', 'UTF-8'));
  words = problem.detail;
  if ~isempty(problem.errors)
    words = '';
    for one = problem.errors(:)'
      words = sprintf('%s%s: %s (%s); ', words, one.field, one.problem, one.remedy);
    end
    words = words(1:end - 2);
  elseif ~isempty(problem.remedy)
    words = sprintf('%s (%s)', words, problem.remedy);
  end
  kind = 'refused';
  kinds = {401, 'unauthorized'; 404, 'notFound'; 429, 'rateLimited'; 503, 'unavailable'};
  known = find([kinds{:, 1}] == status);
  if ~isempty(known)
    kind = kinds{known, 2};
  end
  error(['ncp:' kind], '%s', words);
end
