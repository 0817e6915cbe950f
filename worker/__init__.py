"""Jobs: their contract, records, files and execution."""
