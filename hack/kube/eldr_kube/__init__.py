"""A real Kubernetes control plane and a node that really runs pods, on one machine."""
