-- id: somebody relies on it
use(ARGV[1])
return 1
