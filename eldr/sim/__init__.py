"""Simulated engines: a real one's protocol, without a GPU.

Activations are replayed.
"""
