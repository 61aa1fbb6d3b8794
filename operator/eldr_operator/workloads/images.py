"""The images of a release of the operator, for resources that name none."""

from __future__ import annotations

from typing import Final, NamedTuple

VLLM: Final = "vllm/vllm-openai-rocm:v0.32.0"
"""The release that the tests of real engines run on, there with its build for CPUs: no image for GPUs was ever run."""
VLLM_NVIDIA: Final = "vllm/vllm-openai:v0.32.0"
_NVIDIA: Final = "nvidia.com/"


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

    def for_accelerator(self, resource: str) -> Images:
        """Return the images for an accelerator, by the name of its resource; engines of others than NVIDIA's get AMD's."""
        return self._replace(vllm=VLLM_NVIDIA) if resource.startswith(_NVIDIA) else self
