"""The images of a release of the operator, for resources that name none."""

from __future__ import annotations

from typing import Final, NamedTuple

VLLM: Final = "vllm/vllm-openai-rocm:v0.32.0"
"""The release that the tests of real engines run on, there with its build for CPUs: no image for GPUs was ever run."""


class Images(NamedTuple):
    """What runs where a resource names no image.

    Attributes
    ----------
    own : str
        Of routers, of the plug-in, of simulated engines.
    vllm : str
        Of engines.
    """

    own: str
    vllm: str = VLLM
