"""Simulated engines: the same protocol and the same activations as a real one, without a GPU."""
