"""One vLLM engine in this process, on one thread, that tells of each of its steps. Needs vLLM."""

from __future__ import annotations

import time
from typing import Any

from eldr_lab.steps.machine import BLOCK, MAX_NUM_SEQS, Step

_REFERENCE = range(100, 112)
"""A prompt shorter than a block: no cache ever keeps it."""


class Engine:
    """An engine; it keeps prompts' KV: a request whose prompt was computed before joins with its last token alone, as after a pull.

    Parameters
    ----------
    model : str
        Folder.
    dtype : str
    """

    def __init__(self, model: str, dtype: str) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.layers.fused_moe.layer import MoERunner
        from vllm.v1.engine.llm_engine import LLMEngine

        self._engine: Any = LLMEngine.from_engine_args(
            EngineArgs(
                model=model,
                dtype=dtype,
                enforce_eager=True,
                max_model_len=2048,
                max_num_batched_tokens=2048,
                max_num_seqs=MAX_NUM_SEQS,
                block_size=BLOCK,
                kv_cache_memory_bytes=512 << 20,
                enable_prefix_caching=True,
                distributed_executor_backend="uni",
                disable_log_stats=True,
                seed=0,
            )
        )
        self._chosen: list[Any] = []
        context = self._engine.vllm_config.compilation_config.static_forward_context
        runners = [layer for layer in context.values() if isinstance(layer, MoERunner)]
        for runner in sorted(runners, key=lambda runner: runner.layer_id):
            runner.router.set_capture_fn(self._chosen.append)
        self._references = 0

    def about(self) -> dict[str, Any]:
        """Return what computes here, as vLLM itself tells."""
        import torch
        import vllm
        from vllm.platforms import current_platform

        config = self._engine.vllm_config
        return {
            "vllm": vllm.__version__,
            "device": current_platform.device_type,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "width": config.model_config.hf_text_config.moe_intermediate_size,
            "eager": config.model_config.enforce_eager,
            "threads": torch.get_num_threads(),
        }

    @property
    def busy(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._engine.has_unfinished_requests())

    def add(self, name: str, prompt: list[int], tokens: int, seed: int) -> None:
        """Take a request for so many tokens."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=tokens, ignore_eos=True, temperature=0.8, seed=seed, detokenize=False
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def step(self) -> Step:
        """Run a step."""
        self._chosen.clear()
        began = time.process_time()
        outputs = self._engine.step()
        return Step(
            time.process_time() - began,
            self._chosen[0].shape[0] if self._chosen else 0,
            [int(ids.unique().numel()) for ids in self._chosen],
            [output.request_id for output in outputs],
            [output.request_id for output in outputs if output.finished],
        )

    def counts(self, n_experts: int) -> list[list[int]]:
        """Return how often the last step chose each expert, layer by layer."""
        return [ids.flatten().bincount(minlength=n_experts).tolist() for ids in self._chosen]

    def choices(self) -> list[list[int]]:
        """Return the experts that the last token of the last step chose, layer by layer."""
        return [ids[-1].tolist() for ids in self._chosen]

    def reference(self) -> float:
        """Return the seconds of a step that is always the same, and so tells how fast the machine is now.

        The engine must be idle.
        """
        if self.busy:
            raise ValueError("reference: expected an idle engine")
        self._references += 1
        self.add(f"reference-{self._references}", list(_REFERENCE), 1, 0)
        return self.step().seconds
