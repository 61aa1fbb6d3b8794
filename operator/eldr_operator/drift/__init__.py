"""When traffic has left the centroids it was fitted for, and what to do about it. Pure; see ``docs/drift.md``."""
