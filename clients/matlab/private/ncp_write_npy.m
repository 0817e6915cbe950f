function ncp_write_npy(path, X)
%NCP_WRITE_NPY Write an array of any order to a .npy file, in Fortran order as in memory.
  if issparse(X)
    X = full(X);
  end
  if ~(isnumeric(X) || islogical(X)) || ~isreal(X)
    error('ncp:notATensor', 'a tensor is an array of real numbers, not %s', class(X));
  end
  names = {'double', 'single', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64', 'logical'};
  types = {'<f8', '<f4', '|u1', '<u2', '<u4', '<u8', '|i1', '<i2', '<i4', '<i8', '|b1'};
  shape = sprintf('%d, ', size(X));
  header = sprintf('{''descr'': ''%s'', ''fortran_order'': True, ''shape'': (%s), }', ...
                   types{strcmp(class(X), names)}, shape(1:end - 2));
  header = [header repmat(' ', 1, 63 - mod(10 + numel(header), 64)) char(10)];
  [file, message] = fopen(path, 'w', 'ieee-le');
  if file < 0
    error('ncp:noFile', '%s cannot be written: %s', path, message);
  end
  cleaner = onCleanup(@() fclose(file));
  fwrite(file, [147 double('NUMPY') 1 0], 'uint8');
  fwrite(file, numel(header), 'uint16');
  fwrite(file, header, 'char');
  kind = class(X);
  if islogical(X)
    kind = 'uint8';
  end
  if fwrite(file, X, kind) ~= numel(X)
    error('ncp:noFile', '%s cannot be written: is the disk full?', path);
  end
end
