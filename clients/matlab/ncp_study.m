function study = ncp_study(tensor, kind, varargin)
%NCP_STUDY Queue a study of a tensor, many runs as one request, and return its record.
%   study = ncp_study(tensor, 'compare', 'ranks', 2:5, 'methods', {'anls-bpp'}, 'sparsities', [0.01 0.05])
%   study = ncp_study(tensor, 'choose', 'rank', 16) finds out how many components there are.
%   tensor is what NCP_UPLOAD returned, or a tensor's id; every field of a study can be given by its name. 'url' and
%   'key' name the server as in NCP.
%
%   See also NCP_WATCH_STUDY.
  [server, fields] = ncp_options(varargin);
  if isstruct(tensor)
    tensor = tensor.id;
  end
  fields.kind = char(kind);
  fields.tensor_id = char(tensor);
  lists = {'ranks', 'methods', 'betas', 'sparsities'};
  for k = 1:numel(lists)
    if isfield(fields, lists{k})
      fields.(lists{k}) = as_list(fields.(lists{k}));
    end
  end
  study = ncp_request(server, 'POST', '/v1/studies', struct('json', jsonencode(fields), 'idempotency_key', ncp_once()));
end

function list = as_list(value)
% A list in JSON, of one value too.
  if iscell(value)
    list = value;
  elseif ischar(value)
    list = {value};
  else
    list = num2cell(value);
  end
end
