"""Engines: which exist, which are well and have room, what they report of themselves."""
