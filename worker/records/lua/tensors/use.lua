-- id: somebody relies on it
mark_used(ARGV[1])
return 1
