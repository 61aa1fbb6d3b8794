"""EldrFits: which are needed, how they run, what became of them."""
