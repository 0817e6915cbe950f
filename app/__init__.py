"""The HTTP API of the lab server, the processes of `ncp serve` and the `ncp` command."""
