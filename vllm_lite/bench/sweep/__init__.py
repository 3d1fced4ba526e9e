"""`bench sweep`: benchmarks over combinations of options, and figures of what came of them."""
