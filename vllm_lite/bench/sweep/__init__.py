"""`bench sweep serve`: a benchmark over combinations of options."""
