"""The control plane: reconciles EldrDeployment and EldrFit."""
