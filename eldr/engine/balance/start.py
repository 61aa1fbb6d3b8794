"""The start of an expert-parallel worker: compare the ranks, then let replicas be chosen.

Every rank comes here once, when the weights and the KV cache are there and before graphs are captured. Nothing of ours
has taken part in a forward pass until then, so that a rank which differs is told, and none waits for it in a collective
that it knows nothing of.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import vllm
from vllm.distributed.parallel_state import get_ep_group
from vllm.logger import init_logger

import eldr
from eldr.contract import ENV_BALANCE, ENV_BALANCE_CHECK
from eldr.engine.balance import replicas
from eldr.engine.balance.agreement import gather
from eldr.engine.balance.choice import Balance, Group, Rules, form_for
from eldr.engine.balance.setting import MOST_RANKS, BalanceSetting
from eldr.engine.errors import RankAloneError, RanksDisagreeError, UnsupportedEngineError

logger = init_logger("vllm.eldr")


def start(config: Any, setting: BalanceSetting) -> Balance | None:
    """Compare the ranks, and balance activations if the setting says so; None if it does not.

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
        If the engine has a layer whose replicas cannot be chosen, or whose experts are placed by somebody else.
    """
    if not config.parallel_config.enable_eplb:
        return None
    found, why = [], ""
    if setting.activations:
        try:
            found = _layers(config)
        except UnsupportedEngineError as error:
            why = str(error)  # said to the other ranks first: none may be left waiting
        except Exception as error:  # noqa: BLE001 - whatever it is, the others wait to be told
            why = f"{ENV_BALANCE}: the layers cannot be read: {error!r}; unset it"
    group, identity = get_ep_group(), _identity(config, setting)
    compare(gather(identity | {"layers": str(len(found)), "refused": why}, group))
    if why:
        raise UnsupportedEngineError(why)
    if not found:
        return None
    same = repr(sorted(identity.items()))
    shape = Group(group.world_size, found[0].experts_per_rank, group.all_reduce)
    rules = Rules(
        form_for(found[0].maps.logical_replica_count.device),
        config.model_config.get_num_experts_per_tok(),
        same,
        checked=setting.checked,
    )
    try:
        balance = Balance([(layer.name, layer.maps) for layer in found], shape, rules)
        balance.try_out()
    except (RanksDisagreeError, RankAloneError):
        raise
    except Exception as error:  # the others are in a collective by now
        raise RankAloneError(f"{ENV_BALANCE}: replicas cannot be chosen: {error!r}") from error
    replicas.after_moves(balance.follow)
    for number, layer in enumerate(found):
        layer.experts.exchange = partial(balance.exchange, number)
    logger.info(
        "ELDR: balancing activated experts of %d layers over %d ranks, %d logical and %d physical experts, %.0f us a decision",
        len(found),
        shape.ranks,
        len(balance.layers[0].count),
        shape.experts,
        balance.decision_seconds * 1e6,
    )
    return balance


def compare(said: list[dict[str, str]]) -> None:
    """Raise if ranks said different things.

    Parameters
    ----------
    said : list of dict
        What each rank has, by name.

    Raises
    ------
    RanksDisagreeError
        With the names, and what each rank has.
    """
    different = {
        name: [one.get(name, "") for one in said]
        for name in sorted({name for one in said for name in one})
        if len({one.get(name, "") for one in said}) > 1
    }
    if different:
        named = "; ".join(
            f"{name}: " + ", ".join(f"rank {rank} has {value!r}" for rank, value in enumerate(values))
            for name, values in different.items()
        )
        raise RanksDisagreeError(
            f"ELDR: the ranks of this expert-parallel engine differ: {named}. Start all of them with the same image and environment"
        )


def _layers(config: Any) -> list[replicas.ReplicaLayer]:
    found = replicas.layers(config)
    ranks = get_ep_group().world_size
    if ranks > MOST_RANKS:
        raise UnsupportedEngineError(
            f"{ENV_BALANCE}: {ranks} ranks: replicas are chosen for up to {MOST_RANKS}; unset it"
        )
    for layer in found:
        if layer.experts_per_rank * ranks != layer.n_physical:
            raise UnsupportedEngineError(
                f"{ENV_BALANCE}: {layer.name}: {layer.n_physical} physical experts, but {ranks} ranks of {layer.experts_per_rank}; unset it"
            )
    return found


def _identity(config: Any, setting: BalanceSetting) -> dict[str, str]:
    return {
        "eldr": eldr.__version__,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        ENV_BALANCE: str(setting.activations),
        ENV_BALANCE_CHECK: str(setting.checked),
        "experts": str(config.model_config.get_num_experts()),
    }
