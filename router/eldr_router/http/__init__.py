"""Framing of HTTP messages, both sides. Pure: no I/O, no clock."""
