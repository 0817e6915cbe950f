function reference = ncp_reference(thing, key)
%NCP_REFERENCE Convert a record or an id to a reference in the fields of a job.
  if isstruct(thing) && isfield(thing, 'id')
    thing = thing.id;
  end
  reference = thing;
  if ~isstruct(thing)
    reference = struct(key, char(thing));
  end
end
