function [status, headers, body, reason] = ncp_send_with_matlab(url, method, given, what)
%NCP_SEND_WITH_MATLAB Send one request with matlab.net.http, for MATLAB.
  message = matlab.net.http.RequestMessage(method);
  for k = 1:size(given, 1)
    message = message.addFields(matlab.net.http.HeaderField(given{k, 1}, given{k, 2}));
  end
  if isfield(what, 'json')
    message.Body = matlab.net.http.MessageBody();
    message.Body.Payload = unicode2native(what.json, 'UTF-8')';
  elseif isfield(what, 'file')
    message.Body = matlab.net.http.io.FileProvider(what.file);
  end
  settings = matlab.net.http.HTTPOptions('ConnectTimeout', 10, 'ConvertResponse', false, 'SavePayload', true);
  status = 0;
  headers = '';
  body = '';
  reason = '';
  try
    answer = message.send(matlab.net.URI(url), settings);
  catch failure
    reason = failure.message;
    return
  end
  status = double(answer.StatusCode);
  lines = arrayfun(@(field) sprintf('%s: %s', field.Name, field.Value), answer.Header, 'UniformOutput', false);
  headers = strjoin(lines, newline());
  body = answer.Body.Payload;
  if isfield(what, 'output') && status < 300
    file = fopen(what.output, 'w');
    fwrite(file, body, 'uint8');
    fclose(file);
  end
end
