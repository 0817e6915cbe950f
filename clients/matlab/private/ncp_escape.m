function text = ncp_escape(text)
%NCP_ESCAPE Percent-encode text for one segment of a URL.
  bytes = unicode2native(char(text), 'UTF-8');
  text = '';
  for byte = bytes(:)'
    character = char(byte);
    if byte < 128 && ~isempty(regexp(character, '[A-Za-z0-9_.~-]', 'once'))
      text = [text character];
    else
      text = [text sprintf('%%%02X', byte)];
    end
  end
end
