"""What operators see and ask: admin port, metrics, logs."""
