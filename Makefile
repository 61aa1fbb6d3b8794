.PHONY: help venv check quick test test-all test-artifacts image e2e-vllm e2e-vllm-all e2e-vllm-inside demo bench bench-engine bench-operator gpu-kernels gpu-check soak kube-up lab-test
help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
venv: ## install the locked environment into .venv
	@hack/venv
check: ## format, lint, types, import directions, chart
	@hack/check
quick: venv ## checks, and the tests that take a moment and start no process; about two minutes
	@hack/check
	@hack/test quick
test: venv ## the tests of the product; about ten minutes on two processors once the control plane is built; TIER=ci adds what is costly
	@hack/test $(TIER)
test-all: venv ## all tests but those of e2e-vllm: long ones, the lab's, what needs this machine to itself
	@hack/test all
test-artifacts: venv ## build wheel and image; install each extra by itself, run a deployment from the image alone; some minutes
	@.venv/bin/python -m pytest -q tests/artifacts
image: venv ## build out/eldr-VERSION.oci.tar and its bill of materials, without a container engine, a minute or two; ARCH="amd64 arm64" for both
	@.venv/bin/python -m eldr_image build $(foreach a,$(ARCH),--arch $(a))
e2e-vllm: venv ## tests inside and against real vLLM engines on the CPU, about twenty minutes; VLLM=0.31, 0.32 (default) or 0.33; skipped where they cannot be installed
	@env=$$(hack/vllm/install $(VLLM)) || { [ $$? -eq 3 ]; exit; }; \
	  ELDR_VLLM=$$env hack/test vllm
e2e-vllm-all: venv ## real engines in one mode: MODE=V1-synchronous, V1-asynchronous, V2-synchronous or V2-asynchronous; VLLM= as above; FAMILY=gptoss for signatures of that model, or ONLY=EXPRESSION as of pytest -k; writes a row of docs/benchmarks/engine.md
	@env=$$(hack/vllm/install $(VLLM)) || { [ $$? -eq 3 ]; exit; }; \
	  ELDR_VLLM=$$env ELDR_VLLM_MODE=$(MODE) .venv/bin/python -m pytest $(if $(FAMILY),tests/vllm/test_signatures.py -k "$(FAMILY)",tests/vllm $(if $(ONLY),-k "$(ONLY)")) --override-ini timeout=1200 \
	    --junitxml=out/e2e-vllm.xml --override-ini junit_suite_name="$(or $(MODE),as vLLM decides), $(or $(VLLM),0.32), $(or $(FAMILY),$(ONLY),all)"; done=$$?; \
	  .venv/bin/python -m eldr_bench.modes out/e2e-vllm.xml; exit $$done
e2e-vllm-inside: venv ## tests inside the environment of an engine, VLLM= as above, a minute; writes a row of docs/benchmarks/engine.md
	@env=$$(hack/vllm/install $(VLLM)) || { [ $$? -eq 3 ]; exit; }; \
	  PYTHONPATH=.:operator "$$env/bin/python" -m pytest -c tests/engine/pytest.ini tests/engine --junitxml=out/inside.xml \
	    --override-ini junit_suite_name="inside, $(or $(VLLM),0.32), tests/engine"; done=$$?; \
	  .venv/bin/python -m eldr_bench.modes out/inside.xml; exit $$done
demo: venv ## the whole loop on this machine, about nine minutes once the control plane is built; ENGINE=vllm for real engines
	@.venv/bin/python -m eldr_demo
bench: venv ## measure, and write docs/benchmarks/README.md; ONLY=decision, fit, "large fit", router, "heavy load", features or bodies
	@.venv/bin/python -m eldr_bench $(if $(ONLY),"$(ONLY)")
bench-engine: venv ## measure what the plug-in costs a real engine, and write docs/benchmarks/engine.md and kernels.md
	@.venv/bin/python -m eldr_bench.engine
	@PYTHONPATH=.:hack/bench $$(hack/vllm/install)/bin/python -m eldr_bench.kernels
bench-operator: venv ## measure what the operator costs with 100, 200 and 500 deployments, and write docs/benchmarks/operator.md; about fifteen minutes
	@.venv/bin/python -m eldr_bench.operator $(foreach n,$(DEPLOYMENTS),--deployments $(n))
gpu-kernels: ## on a GPU: compare and time our kernels, writes docs/benchmarks/gpu-kernels.md; needs PyTorch and Triton only, PYTHON=... names who has them
	@PYTHONPATH=.:hack/bench $${PYTHON:-python3} -m eldr_bench.gpu_kernels
gpu-check: venv ## on a GPU: what the plug-in costs vLLM, writes docs/benchmarks/gpu-check.md; needs an installed vLLM, PYTHON=... names who has it, MODEL=... or LAYERS=...
	@.venv/bin/python -m eldr_bench.gpu_check --python $${PYTHON:-python3} $(if $(MODEL),--model $(MODEL)) $(if $(LAYERS),--layers $(LAYERS)) $(if $(REHEARSE),--rehearse)
soak: venv ## disturb routers and engines at random under load, and print what was seen; MINUTES=30, SEED for the same again
	@.venv/bin/python -m tests.support.soak --minutes $${MINUTES:-30} $${SEED:+--seed $$SEED}
kube-up: venv ## a cluster to play with, until ctrl-C
	@.venv/bin/python -m eldr_kube up
lab-test: ## tests of the lab, which holds the research: `make -C hack/lab help`
	@$(MAKE) --no-print-directory -C hack/lab test
