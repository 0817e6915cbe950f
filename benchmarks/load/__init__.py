"""The server under load: every figure beside the limit it must keep, measured in the same run."""
