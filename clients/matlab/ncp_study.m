function study = ncp_study(tensor, kind, varargin)
%NCP_STUDY Queue a study: many runs on one tensor.
%
%   Syntax
%     study = ncp_study(tensor, 'compare', 'ranks', ranks, 'methods', methods, Name, Value, ...)
%     study = ncp_study(tensor, 'choose', 'rank', R, Name, Value, ...)
%
%   Inputs
%     tensor         record or id of a tensor
%     'compare'      compares ranks, methods and weights
%     'stability'    assesses the stability of the components of the job 'job_id'
%     'choose'       chooses the number of components, at most R
%     Name, Value    any other field of a study, such as 'sparsities', 'repeats' or 'seeds'; [] is null, as in
%                    'penalty', [] for the own penalty of each method
%     'url', 'key'   address of the server and API key; see NCP
%
%   Outputs
%     study          record of the study
%
%   Example
%     study = ncp_study(tensor, 'compare', 'ranks', 2:5, 'methods', {'anls-bpp'}, 'sparsities', [0.01 0.05]);
%     study = ncp_watch_study(study);
%
%   See also NCP_WATCH_STUDY, NCP_ADVICE.
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
  exclude = {};
  if isfield(fields, 'exclude')
    exclude = fields.exclude;
    fields = rmfield(fields, 'exclude');
  end
  json = ncp_exclusion(jsonencode(ncp_nulls(fields)), exclude);
  study = ncp_request(server, 'POST', '/v1/studies', struct('json', json, 'idempotency_key', ncp_once()));
end

function list = as_list(value)
% Return a cell array, which becomes a list in JSON even with one value.
  if iscell(value)
    list = value;
  elseif ischar(value)
    list = {value};
  else
    list = num2cell(value);
  end
end
