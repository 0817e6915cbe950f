function [server, options] = ncp_options(arguments)
%NCP_OPTIONS Convert names and values, or structs, to one struct, and find the server.
  options = struct();
  place = 1;
  while place <= numel(arguments)
    if isstruct(arguments{place})
      names = fieldnames(arguments{place});
      for k = 1:numel(names)
        options.(names{k}) = arguments{place}.(names{k});
      end
      place = place + 1;
    else
      if ~(ischar(arguments{place}) || isa(arguments{place}, 'string')) || place == numel(arguments)
        error('ncp:usage', 'options are names and values, such as ''rank'', 8');
      end
      options.(char(arguments{place})) = arguments{place + 1};
      place = place + 2;
    end
  end
  stored = read_config();
  [url, options] = ncp_take(options, 'url', '');
  [key, options] = ncp_take(options, 'key', '');
  if isempty(url), url = getenv('NCP_URL'); end
  if isempty(url), url = stored.url; end
  url = regexprep(char(url), '/+(v1/*)?$', '');
  if isempty(regexp(url, '^https?://[^\s/]+', 'once'))
    error('ncp:usage', '"%s" is not the address of a server; give one such as http://127.0.0.1:8000', url);
  end
  if isempty(key), key = getenv('NCP_KEY'); end
  if isempty(key) && strcmp(url, stored.url)
    key = stored.key;  % a stored key is used only for its own server
  end
  server = struct('url', url, 'key', char(key));
end

function stored = read_config()
  stored = struct('url', 'http://127.0.0.1:8000', 'key', '');
  folder = getenv('XDG_CONFIG_HOME');
  if isempty(folder)
    folder = fullfile(getenv('HOME'), '.config');
  end
  path = fullfile(folder, 'ncp', 'config.toml');
  if exist(path, 'file')
    found = regexp(fileread(path), '^(url|key)\s*=\s*("[^\n]*")', 'tokens', 'lineanchors');
    for k = 1:numel(found)
      stored.(found{k}{1}) = jsondecode(found{k}{2});
    end
  end
end
