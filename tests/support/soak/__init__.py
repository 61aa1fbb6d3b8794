"""A soak: a router and simulated engines as processes, disturbed at random, under clients of every kind.

``python -m tests.support.soak --minutes 30`` runs it; ``tests/router/test_soak.py`` is its short form. What is done
(:mod:`.plan`, :mod:`.asks`) and what is wrong (:mod:`.judge`, :mod:`.flat`) is decided without I/O.
"""
