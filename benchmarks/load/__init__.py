"""The server under load: each figure with its limit, measured in the same run."""
