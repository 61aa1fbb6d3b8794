"""The API server: requests, server-side apply, Events, the work queue."""
