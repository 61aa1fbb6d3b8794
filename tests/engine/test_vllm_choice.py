"""The baseline that simulators hold METRO against is the choice of vLLM's own kernel, here in Triton's interpreter."""

import importlib.util

import numpy as np
import pytest
import torch
import triton
import triton.language
import vllm.triton_utils
from vllm.model_executor.layers.fused_moe.router import base_router
from vllm.platforms import current_platform

from tests.support.metro import Placement
from tests.support.metro.baselines import pack, vllm_choice


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Return the module of vLLM's mapping as a GPU's process has it: CPUs map nothing."""
    monkeypatch.setattr(type(current_platform), "is_cuda_alike", lambda _: True)
    monkeypatch.setattr(vllm.triton_utils, "triton", triton)
    monkeypatch.setattr(vllm.triton_utils, "tl", triton.language)
    spec = importlib.util.spec_from_file_location("base_router_as_on_a_gpu", base_router.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(4))
def test_vllms_kernel_and_ours_choose_the_same_replicas(as_on_a_gpu, seed):
    rng = np.random.default_rng(seed)
    placement = Placement(pack(rng.random(40), 60, 4), 40, 4)
    ids = rng.integers(-1, 41, (50, 6))
    table, count = (torch.from_numpy(array) for array in placement.maps())
    load = torch.zeros(60, dtype=torch.int32)
    mapped = as_on_a_gpu.eplb_map_to_physical_and_record(
        torch.from_numpy(ids).to(torch.int32), load, table, count, torch.tensor(data=True), None
    )
    expected = vllm_choice(ids, placement)
    assert (mapped.numpy() == expected).all()
    assert (load.numpy() == np.bincount(expected[expected >= 0], minlength=60)).all()
