"""What `make -C hack/lab evidence` runs: the paper's experiments in the pool simulator, each beside the published number."""
