"""What requests leave behind: metrics, spans, log lines, signatures."""
