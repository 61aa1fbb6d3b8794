"""`eldr compare`: two placement policies on one deployment's own traffic, in turns."""
