"""Benchmarks of ideas: prefix affinity, counts that peers report late, drift."""
