"""What clients ask: paths, bodies, headers, and how engines answer them. Pure but for the guard."""
