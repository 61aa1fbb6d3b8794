"""From signature logs to centroid sets."""
