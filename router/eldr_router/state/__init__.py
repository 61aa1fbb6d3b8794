"""What the process knows: engines and their load, the table in effect, the other routers."""
