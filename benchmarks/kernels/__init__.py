"""Cases of time_kernels.py, one family a file, and the machine's limits."""
