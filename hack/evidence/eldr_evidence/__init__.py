"""What ``make evidence`` runs: the paper's experiments again in the pool simulator, each beside the published number."""
