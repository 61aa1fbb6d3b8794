"""What a forward pass routed: made visible, and counted by KV block, by request and by step."""
