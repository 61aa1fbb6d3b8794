"""Prefill engines: every prompt's experts, in the answer."""
