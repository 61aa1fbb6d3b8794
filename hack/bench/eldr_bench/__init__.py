"""Benchmarks of the product: `make bench`, `make bench-engine`, `make bench-operator`."""
