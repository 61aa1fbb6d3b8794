"""What the choice of replicas brought in a step: the columns of the table that a worker reports."""

N_FIGURES = 4
FULLEST, ALL, FULLEST_VLLM, ALL_VLLM = range(N_FIGURES)
"""Columns of a step's figures: experts of the fullest rank and of all, as chosen and as vLLM would have."""
