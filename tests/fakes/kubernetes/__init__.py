"""A Kubernetes API server and its controllers in the process of a test, in the time of its event loop.

For tests of what follows from the order of events: thousands of them, each the same again from its seed. It has what the operator
rests on: versions and generations, server-side apply with field managers, conflicts, owner references, watches. It has no schemas,
defaults, rights or admission: those are the real API server's, in ``tests/operator``.
"""
