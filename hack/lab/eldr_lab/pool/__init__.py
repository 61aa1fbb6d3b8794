"""Pools beyond what `eldr simulate` offers: several routers, refits, drift, full KV caches."""
