"""A vLLM engine as a process that others ask; it forks itself into more of them. Needs vLLM.

    python -P -m eldr_lab.steps.server FD ADDRESS MODEL DTYPE

Answers calls ``(name, *arguments)`` on the open file FD until its other end is closed; forks connect to the Unix socket ADDRESS and do
the same. See :class:`Engine`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Client, Connection
from typing import Any

from eldr_lab.steps.machine import BLOCK, MAX_NUM_SEQS, N_EXPERTS, Step

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
        from transformers import AutoTokenizer
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
        self._encode = AutoTokenizer.from_pretrained(model, local_files_only=True).encode
        self._asked = 0

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

    def ready(self) -> None:
        """Answer."""

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        return list(self._encode(text))

    def record(self, prompt: list[int], tokens: int, seed: int) -> tuple[list[list[int]], list[Any]]:
        """Compute a request alone, and keep its prompt's KV.

        Returns
        -------
        prefill : list of list of int
            How often the prompt chose each expert, layer by layer.
        decode : list
            Experts of each decode step, [step][layer][choice].
        """
        self._asked += 1
        self.add(f"record-{self._asked}", prompt, tokens, seed)
        prefill, decode = self.step(), []
        counts = [ids.flatten().bincount(minlength=N_EXPERTS).tolist() for ids in self._chosen]
        if prefill.rows != len(prompt):
            raise ValueError(
                f"prompt: {len(prompt) - prefill.rows} of {len(prompt)} tokens were computed before"
            )
        while self._engine.has_unfinished_requests():
            self.step()
            decode.append([ids[-1].tolist() for ids in self._chosen])
        return counts, decode

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

    def reference(self) -> float:
        """Return the seconds of a step that is always the same, of an idle engine: how fast the machine is now."""
        if self._engine.has_unfinished_requests():
            raise ValueError("reference: expected an idle engine")
        self._asked += 1
        self.add(f"reference-{self._asked}", list(_REFERENCE), 1, 0)
        return self.step().seconds


def serve(connection: Connection[Any, Any], address: str, engine: Engine) -> None:
    """Answer calls until the other side is gone; ``fork`` begins another process with all that this one holds."""
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        if name != "fork":
            connection.send(getattr(engine, name)(*arguments))
        elif os.fork():
            connection.send(None)
        else:
            connection.close()
            connection = Client(address, "AF_UNIX")


def main() -> None:
    """Serve; whatever vLLM prints goes to stderr."""
    fd, address, model, dtype = sys.argv[1:]
    os.dup2(2, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork ended
    serve(Connection(int(fd)), address, Engine(model, dtype))
    os._exit(0)  # a fork that tidies up after the engine takes what the others share for its own


if __name__ == "__main__":
    main()
