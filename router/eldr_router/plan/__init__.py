"""Decisions: what a request does next, where it goes, what an engine is worth. Pure."""
