"""How well prompts predict the experts of decode steps: `make -C hack/lab correlation`."""
