"""How many threads NumPy's products may have; imports nothing of it, because it must be set before NumPy is imported."""

from __future__ import annotations

import os

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread() -> None:
    """Leave one to each product, here and in processes that are started from here, unless the environment sets another number."""
    for name in VARIABLES:
        os.environ.setdefault(name, "1")
