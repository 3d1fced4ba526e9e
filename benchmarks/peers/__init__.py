"""The parts of compare_peers.py: what is measured, by whom, in which processes, and the report."""
