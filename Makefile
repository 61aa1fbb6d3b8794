.PHONY: help venv check test demo bench correlation kube-up
help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
venv: ## install the locked environment into .venv
	@hack/venv
check: ## format, lint, types, import directions, chart
	@hack/check
test: venv ## unit, property and integration tests
	@.venv/bin/python -m pytest
demo: venv ## the whole loop on this machine, about six minutes once the control plane is built; ENGINE=vllm for real engines
	@.venv/bin/python -m eldr_demo
bench: venv ## measure, and write docs/benchmarks/README.md
	@.venv/bin/python hack/bench/render.py
correlation: venv ## how well prompts predict decode experts: writes docs/benchmarks/correlation.md
	@.venv/bin/python hack/bench/correlation.py
kube-up: venv ## a cluster to play with, until ctrl-C
	@.venv/bin/python -m eldr_kube up
