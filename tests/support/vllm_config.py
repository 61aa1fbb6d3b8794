"""What the plug-in reads of an engine's configuration, where there is no vLLM."""

from types import SimpleNamespace
from typing import Any


def engine(
    *,
    experts: int = 64,
    speculative_config: Any = None,
    device: str = "cuda",
    mode: int = 3,
    lora: Any = None,
    v2: bool = False,
    full_graphs: bool = False,
    sleeps: bool = False,
    **parallel: Any,
) -> Any:
    """Return the configuration of an engine of one rank, or of what ``parallel`` says."""
    sizes = dict.fromkeys(
        (
            *("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"),
            *("tensor_parallel_size", "data_parallel_size"),
        ),
        1,
    )
    off = dict.fromkeys(
        (
            *(
                "data_parallel_external_lb",
                "data_parallel_hybrid_lb",
                "enable_expert_parallel",
                "enable_eplb",
            ),
            *("enable_elastic_ep", "enable_fault_tolerance", "use_ubatching", "enable_dbo"),
        ),
        False,
    )
    others = {
        "eplb_config": SimpleNamespace(num_redundant_experts=0),
        "all2all_backend": "allgather_reducescatter",
        "ubatch_size": 0,
    }
    return SimpleNamespace(
        model_config=SimpleNamespace(model="m", get_num_experts=lambda: experts, enable_sleep_mode=sleeps),
        parallel_config=SimpleNamespace(**sizes | off | others | parallel),
        speculative_config=speculative_config,
        use_v2_model_runner=v2,
        lora_config=lora,
        device_config=SimpleNamespace(device_type=device),
        compilation_config=SimpleNamespace(
            mode=mode, cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: full_graphs)
        ),
    )
