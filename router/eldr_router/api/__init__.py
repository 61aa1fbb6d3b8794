"""What clients ask, and how engines answer. Pure but for the guard."""
