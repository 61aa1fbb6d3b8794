"""Prompts: which experts each used, for answers and records."""
