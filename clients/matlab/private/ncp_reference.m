function reference = ncp_reference(thing, key)
%NCP_REFERENCE How a job names another thing: by its id, or by the record that has it.
  if isstruct(thing) && isfield(thing, 'id')
    thing = thing.id;
  end
  reference = thing;
  if ~isstruct(thing)
    reference = struct(key, char(thing));
  end
end
