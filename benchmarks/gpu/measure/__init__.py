"""What run.py measures on a GPU; see docs/gpu.md for what each figure means."""
