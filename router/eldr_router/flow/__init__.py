"""The flow of a request: its state machine, legs and queue."""
