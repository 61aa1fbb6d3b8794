"""The data plane: an OpenAI-compatible router that places every request after its prefill."""
