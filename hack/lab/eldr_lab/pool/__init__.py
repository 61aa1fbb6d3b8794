"""Pools beyond what `eldr simulate` offers: several routers, prefix caches, refits, drift."""
