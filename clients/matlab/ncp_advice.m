function text = ncp_advice(study)
%NCP_ADVICE Print the advice of a study that has ended.
%
%   Syntax
%     ncp_advice(study)
%     text = ncp_advice(study)
%
%   Inputs
%     study          record of a study, as NCP_WATCH_STUDY returns it
%
%   Outputs
%     text           lines of the advice as a cell array, in place of printing them, and last what failed; empty
%                    without either
%
%   Example
%     study = ncp_watch_study(ncp_study(tensor, 'choose', 'rank', 8));
%     ncp_advice(study)
%
%   See also NCP_STUDY, NCP_WATCH_STUDY.
  lines = {};
  if isstruct(study.advice)
    lines = {study.advice.reason};
  elseif isfield(study, 'recommendation') && isstruct(study.recommendation)
    lines = [{study.recommendation.title}; cellstr(study.recommendation.sentences)];
    if isfield(study, 'table') && isstruct(study.table) && ~isempty(study.table.notes)
      lines = [lines; cellstr(study.table.notes)];
    end
  end
  if isstruct(study.error)
    lines = [lines; {sprintf('%s (%s)', study.error.message, study.error.remedy)}];
  end
  if nargout > 0
    text = lines;
  elseif ~isempty(lines)
    fprintf('%s\n', lines{:});
  end
end
