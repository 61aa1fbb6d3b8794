"""The command ``eldr smoke``: one request to an EldrDeployment, end to end, as a client sends it."""
