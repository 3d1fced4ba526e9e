"""Cases of time_kernels.py, one family a file, and the limits they are held against."""
