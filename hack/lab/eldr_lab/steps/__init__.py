"""Decode steps of a real engine on a CPU: what their time follows, and what placement does to it."""
