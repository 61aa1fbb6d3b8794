"""Where a router learns its engines, settings and centroids from."""
