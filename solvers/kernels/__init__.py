"""Inner loops in compiled code. A kernel gets rows, writes rows, holds no lock and knows no threads."""
