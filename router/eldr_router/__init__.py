"""The data plane: it places every request after its prefill.

It speaks OpenAI's and Anthropic's APIs.
"""
