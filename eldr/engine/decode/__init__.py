"""Answers: what every finished request activated, and no KV that came too late."""
