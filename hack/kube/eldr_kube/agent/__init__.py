"""The node agent: registers nodes and runs the containers of their pods as local processes.

It plays the kubelet's part for tests and the demo. Volumes, probes, restarts, termination and ServiceAccount tokens are
real; images are a map to local programs. ``securityContext`` is accepted and not enforced.
"""

READY_FILE = "ready"
"""An agent makes this file in its state folder when its nodes are registered."""
