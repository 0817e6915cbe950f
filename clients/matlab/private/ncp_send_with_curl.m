function [status, headers, body, reason] = ncp_send_with_curl(url, method, given, what)
%NCP_SEND_WITH_CURL Send one request with curl, for Octave. The key goes through a pipe, so that ps does not show it.
  base = tempname();
  names = struct('body', [base '.body'], 'headers', [base '.headers'], 'json', [base '.json'], 'errors', [base '.errors']);
  cleaner = onCleanup(@() remove(struct2cell(names)));
  output = names.body;
  if isfield(what, 'output')
    output = what.output;
  end
  lines = {option('url', url), option('request', method), 'silent', 'show-error', 'globoff', ...
           option('connect-timeout', '10'), option('speed-time', '120'), option('speed-limit', '1'), ...
           option('output', output), option('dump-header', names.headers), option('stderr', names.errors), ...
           option('header', 'Expect:')};
  for k = 1:size(given, 1)
    lines{end + 1} = option('header', [given{k, 1} ': ' given{k, 2}]);
  end
  if isfield(what, 'json')
    write(names.json, what.json);
    lines{end + 1} = option('upload-file', names.json);
  elseif isfield(what, 'file')
    lines{end + 1} = option('upload-file', what.file);
  end
  pipe = popen('curl --config -', 'w');
  if pipe < 0
    error('ncp:noCurl', 'curl cannot be started; install it');
  end
  fputs(pipe, [strjoin(lines, "\n") "\n"]);
  code = pclose(pipe);
  headers = strrep(read(names.headers), "\r", '');
  found = regexp(headers, '^HTTP/\S+ (\d+)', 'tokens', 'lineanchors');
  status = 0;
  body = '';
  reason = strtrim(read(names.errors));
  if code == 127 || code == 127 * 256
    error('ncp:noCurl', 'curl is not installed');
  end
  if code == 0 && ~isempty(found)
    status = str2double(found{end}{1});
  elseif ~isempty(found) && str2double(found{end}{1}) >= 300
    status = str2double(found{end}{1});  % the server refused before it had read everything
  end
  if ~isfield(what, 'output') || status >= 300
    body = uint8(read(output));
  end
end

function line = option(name, value)
  value = strrep(strrep(value, '\', '\\'), '"', '\"');
  line = sprintf('%s = "%s"', name, strrep(value, "\n", '\n'));
end

function write(path, text)
  file = fopen(path, 'w');
  fwrite(file, text, 'char');
  fclose(file);
end

function text = read(path)
  text = '';
  file = fopen(path, 'r');
  if file >= 0
    text = fread(file, Inf, 'uint8=>char')';
    fclose(file);
  end
end

function remove(paths)
  for k = 1:numel(paths)
    if exist(paths{k}, 'file')
      delete(paths{k});
    end
  end
end
