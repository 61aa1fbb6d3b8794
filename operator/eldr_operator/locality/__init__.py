"""Which centroid set routers use, and what they tell of themselves."""
