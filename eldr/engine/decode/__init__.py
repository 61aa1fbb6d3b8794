"""Decode engines: what every finished request activated, the union of every step, and no KV that came too late."""
