.PHONY: help venv check test e2e-vllm demo evidence bench bench-engine bench-steps bench-policies bench-drift bench-balance correlation soak kube-up
help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
venv: ## install the locked environment into .venv
	@hack/venv
check: ## format, lint, types, import directions, chart
	@hack/check
test: venv ## unit, property and integration tests
	@hack/test
e2e-vllm: venv ## tests inside and against real vLLM engines on the CPU, about a quarter of an hour; skipped where they cannot be installed
	@env=$$(hack/vllm/install) || { [ $$? -eq 3 ]; exit; }; \
	  PYTHONPATH=.:operator "$$env/bin/python" -m pytest -c tests/engine/pytest.ini tests/engine && \
	  ELDR_VLLM=$$env .venv/bin/python -m pytest tests/vllm --override-ini timeout=600
demo: venv ## the whole loop on this machine, about nine minutes once the control plane is built; ENGINE=vllm for real engines
	@.venv/bin/python -m eldr_demo
evidence: venv ## simulate the paper's experiments, and write docs/evidence.md with pictures; about 25 minutes on two processors; AGAIN=1 only writes, from the last runs
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv/bin/python -m eldr_evidence $(if $(SEEDS),--seeds $(SEEDS)) $(if $(MORE),--more $(MORE)) $(if $(JOBS),--jobs $(JOBS)) $(if $(AGAIN),--again)
bench: venv ## measure, and write docs/benchmarks/README.md; ONLY=decision, metro, fit, "large fit" or router
	@.venv/bin/python hack/bench/render.py $(if $(ONLY),"$(ONLY)")
bench-engine: venv ## measure what the plug-in costs a real engine, and write docs/benchmarks/engine.md and kernels.md
	@.venv/bin/python hack/bench/engine.py
	@PYTHONPATH=. $$(hack/vllm/install)/bin/python hack/bench/kernels.py
bench-steps: venv ## how decode steps of a real engine follow their active experts: writes docs/benchmarks/steps.md
	@.venv/bin/python -m eldr_steps law
bench-policies: venv ## what placement does to 2 and 4 real engines that take turns on a core: writes docs/benchmarks/policies.md; about 45 minutes
	@.venv/bin/python -m eldr_steps policies
bench-drift: venv ## how often drift is called that is none, and how soon what is: writes docs/benchmarks/drift.md; about a quarter of an hour of one core
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv/bin/python hack/bench/drift.py
bench-balance: venv ## which replica of an expert computes on engines of several ranks: a part of make evidence; about a minute of one core
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv/bin/python -m eldr_evidence.balance_study
correlation: venv ## how well prompts predict decode experts: writes docs/benchmarks/correlation.md
	@.venv/bin/python hack/bench/correlation.py
soak: venv ## disturb routers and engines at random under load, and print what was seen; MINUTES=30, SEED for the same again
	@.venv/bin/python -m tests.support.soak --minutes $${MINUTES:-30} $${SEED:+--seed $$SEED}
kube-up: venv ## a cluster to play with, until ctrl-C
	@.venv/bin/python -m eldr_kube up
