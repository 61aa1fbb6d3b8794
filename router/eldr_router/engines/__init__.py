"""Engines: which exist, which are healthy, what they report."""
