"""Where vLLM calls: entry points, the connector, the endpoint, and what is refused at start."""
