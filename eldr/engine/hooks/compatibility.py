"""What of a configuration would make an engine count wrongly: it serves without counts then, and reports why."""

from __future__ import annotations

from typing import Any

from eldr.contract import SPECULATION, SPECULATION_WITHOUT_KV

MAX_BLOCK_SIZE = 2**15 - 1
"""What the widest cell of the block table counts, see :func:`eldr.engine.capture.kernels.cell_type`."""


def problems(
    config: Any,
    block_size: int,
    *,
    prompts: bool,
    drafts_first: bool = True,
) -> list[str]:
    """Return what of an engine's configuration would be counted wrongly, each with a remedy; empty if nothing is.

    Parameters
    ----------
    config : vllm.config.VllmConfig
    block_size : int
        Tokens per KV block of the full-attention group.
    prompts : bool
        Whether the engine counts prompts.
    drafts_first : bool
        Whether model runner V2 drafts before it reports where the tokens of a full-graph step lie, as it does up to vLLM 0.32.
    """
    reasons = []
    if not config.model_config.get_num_experts():
        reasons.append(f"model {config.model_config.model}: it has no experts; serve it without ELDR")
    parallel = config.parallel_config
    # read without defaults: a field that vLLM renames must fail, not count as harmless
    sizes = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
    }
    for field, size in sizes.items():
        if size > 1:
            reasons.append(f"{field}={size}: no rank sees every layer of every token; set it to 1")
    if (size := parallel.data_parallel_size) > 1:
        reasons += [f"data_parallel_size={size}: {why}" for why in _spread(parallel)]
        if prompts and parallel.tensor_parallel_size > 1:
            reasons.append(
                f"tensor_parallel_size={parallel.tensor_parallel_size} beside it: each rank of an engine with kv_producer would "
                "see a part of every prompt; use one of the two"
            )
    if parallel.use_ubatching:
        reasons.append(
            f"enable_dbo={parallel.enable_dbo}, ubatch_size={parallel.ubatch_size}: micro-batches hide which token goes "
            "where; leave both off"
        )
    if config.device_config.device_type == "cpu" and config.compilation_config.mode:
        reasons.append("torch.compile on a CPU: compiled layers leave the capture out; set --enforce-eager")
    reasons += _drafts(config, drafts_first=drafts_first)
    if prompts and block_size > MAX_BLOCK_SIZE:
        reasons.append(
            f"block_size={block_size}: the table counts {MAX_BLOCK_SIZE} tokens of a block at most; lower --block-size (a "
            "hybrid model's full-attention blocks can be a multiple of it)"
        )
    return reasons


def _drafts(config: Any, *, drafts_first: bool) -> list[str]:
    """Return what of speculative decoding would be counted wrongly, or was never tried."""
    if (drafts := config.speculative_config) is None:
        return []
    reasons = []
    if drafts.method not in SPECULATION:
        reasons.append(
            f"speculative_config.method={drafts.method}: counting was not tried with it; use one of {', '.join(SPECULATION)}"
        )
    graphs = config.compilation_config.cudagraph_mode
    # what drafts without a model has no tokens in the cache
    writes_slots = drafts.method not in SPECULATION_WITHOUT_KV
    if drafts_first and writes_slots and config.use_v2_model_runner and graphs.has_full_cudagraphs():
        reasons.append(
            "speculative_config with model runner V2 and full graphs: up to vLLM 0.32 such a step reports the places of its tokens after "
            "drafting has overwritten them. Use vLLM 0.33, or set --compilation-config.cudagraph_mode=PIECEWISE, or "
            "VLLM_USE_V2_MODEL_RUNNER=0"
        )
    return reasons


def _spread(parallel: Any) -> list[str]:
    """Return what keeps ranks with different requests from being one engine to whoever asks it."""
    reasons = []
    if not parallel.enable_expert_parallel:
        reasons.append(
            "each rank is an engine by itself; set --enable-expert-parallel, or run one engine per replica"
        )
    if parallel.data_parallel_external_lb or parallel.data_parallel_hybrid_lb:
        reasons.append("some ranks are served elsewhere; run all of them behind one address")
    return reasons
