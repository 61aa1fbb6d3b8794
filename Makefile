.PHONY: help venv check test
help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
venv: ## install the locked environment into .venv
	@hack/venv
check: ## format, lint, types, import directions, chart
	@hack/check
test: venv ## unit, property and integration tests
	@.venv/bin/python -m pytest
