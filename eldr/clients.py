"""HTTP clients that do not close a connection under a request."""

from __future__ import annotations

import httpx

# httpcore 1.0.9 decides which idle connections to close, lets other tasks run, and then closes them: by then a request may be using
# one, and ends with a ReadError. It never decides so without bounds.
UNBOUNDED = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
"""Limits of a client whose connections stay until it is closed, or the server closes them."""
