"""Connections: from clients (inbound), to engines and other routers (outbound)."""
