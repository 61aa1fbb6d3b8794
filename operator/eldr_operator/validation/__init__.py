"""Checks of an EldrDeployment that its schema cannot make."""
