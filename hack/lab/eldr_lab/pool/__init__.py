"""Pools beyond what `eldr simulate` offers: ranks and replicas, several routers, prefix caches, refits, drift."""
