"""Connections: from clients, and to engines and routers."""
