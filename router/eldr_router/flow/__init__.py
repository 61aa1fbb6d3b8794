"""A request on its way: its state machine, the two legs of a completion, and who waits for room."""
