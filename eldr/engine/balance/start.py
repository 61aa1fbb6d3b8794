"""The start of an expert-parallel worker: compare the ranks, then let replicas be chosen.

Every rank comes here once, when the weights and the KV cache are there and before graphs are captured. Nothing of ours
has taken part in a forward pass until then, so that a rank which differs is reported, and none waits for it in a collective
that it does not enter.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import vllm
from vllm.distributed.parallel_state import get_ep_group
from vllm.logger import init_logger

import eldr
from eldr.contract import ENV_BALANCE
from eldr.engine.balance import replicas
from eldr.engine.balance.agreement import gather
from eldr.engine.balance.choice import ON_HOST, Balance, Group, alone, in_triton
from eldr.engine.balance.setting import MOST_RANKS
from eldr.engine.errors import RanksDisagreeError, UnsupportedEngineError

logger = init_logger("vllm.eldr")


def start(config: Any, *, activations: bool) -> Balance | None:
    """Compare the ranks, and balance activations if they are to be; None if not.

    Parameters
    ----------
    config : vllm.config.VllmConfig

    Raises
    ------
    RanksDisagreeError
        If versions, settings or maps of experts differ between ranks.
    RankAloneError
        If this rank fails when the others have agreed.
    UnsupportedEngineError
        If the engine has a layer whose replicas cannot be chosen, or another plug-in places its experts.
    """
    if not config.parallel_config.enable_eplb:
        return None
    layers, why = [], ""
    if activations:
        try:
            layers = _layers(config)
        except UnsupportedEngineError as error:
            why = str(error)  # sent to the other ranks first: none may be left waiting
        except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for the report
            why = f"{ENV_BALANCE}: the layers cannot be read: {error!r}; unset it"
    group, identity = get_ep_group(), _identity(config, activations=activations)
    compare(gather(identity | {"layers": str(len(layers)), "refused": why}, group))
    if why:
        raise UnsupportedEngineError(why)
    if not layers:
        return None
    maps = [(layer.layer_name, layer.router.eplb_state) for layer in layers]
    shape = Group(
        group.world_size,
        layers[0].routed_experts.local_num_experts,
        group.all_reduce,
        lambda said: gather(said, group),
    )
    on = maps[0][1].logical_replica_count.device
    form = in_triton() if on.type == "cuda" else ON_HOST  # ROCm calls itself so, too
    with alone("replicas cannot be chosen"):  # the others are in a collective by now
        balance = Balance(maps, shape, form, config.model_config.get_num_experts_per_tok())
        balance.try_out()
    replicas.after_moves(balance.follow)
    for number, layer in enumerate(layers):
        layer.routed_experts.exchange = partial(balance.exchange, number)
    logger.info(
        "ELDR: balancing activated experts of %d layers over %d ranks, %d logical and %d physical experts",
        len(layers),
        shape.ranks,
        len(balance.layers[0].count),
        shape.experts,
    )
    return balance


def compare(said: list[dict[str, str]]) -> None:
    """Raise if ranks differ.

    Parameters
    ----------
    said : list of dict
        What each rank has, by name.

    Raises
    ------
    RanksDisagreeError
        With the first of the names, and what each rank has.
    """
    for name in sorted(set().union(*said)):
        values = [one.get(name, "") for one in said]
        if len(set(values)) > 1:
            raise RanksDisagreeError(
                f"ELDR: the ranks of this expert-parallel engine differ: {name}: "
                + ", ".join(f"rank {rank} has {value!r}" for rank, value in enumerate(values))
                + ". Start all of them with the same image and environment"
            )


def _layers(config: Any) -> list[Any]:
    layers = replicas.layers(config)
    ranks = get_ep_group().world_size
    if ranks > MOST_RANKS:
        raise UnsupportedEngineError(
            f"{ENV_BALANCE}: {ranks} ranks: replicas are chosen for up to {MOST_RANKS}; unset it"
        )
    for layer in layers:
        own, all_of_it = layer.routed_experts.local_num_experts, len(layer.router.eplb_state.expert_load_view)
        if own * ranks != all_of_it:
            raise UnsupportedEngineError(
                f"{ENV_BALANCE}: {layer.layer_name}: {all_of_it} physical experts, but {ranks} ranks of {own}; unset it"
            )
    return layers


def _identity(config: Any, *, activations: bool) -> dict[str, str]:
    return {
        "eldr": eldr.__version__,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        ENV_BALANCE: str(activations),
        "experts": str(config.model_config.get_num_experts()),
    }
