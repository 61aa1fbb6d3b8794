"""``eldr rollout``: what the pods of a deployment are made from, and how to stop, go on and go back."""
