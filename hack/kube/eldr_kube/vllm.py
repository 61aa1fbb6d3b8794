"""What vLLM's images mean on a machine without a GPU: the environment that ``hack/vllm/install`` makes."""

from __future__ import annotations

from pathlib import Path

from eldr_kube.agent.images import Image

PATTERNS = ("vllm/vllm-openai*", "*/vllm/vllm-openai*", "rocm/vllm*", "*/rocm/vllm*")
_ENV = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # By default every worker of every engine is pinned to the same core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    # Without the last one, the first pull between two engines takes half a minute.
    "UCX_TLS": "tcp,sm,self",
    "UCX_NET_DEVICES": "lo",
}
"""Of the image, so a container's own variables win."""


class NoEnvironmentError(Exception):
    """A folder is not an environment with vLLM."""


def vllm_images(environment: Path) -> dict[str, Image]:
    """Return image map entries that run vLLM from an environment; NoEnvironmentError if the folder has no ``vllm`` command."""
    folder = environment.absolute()
    program = folder / "bin" / "vllm"
    if not program.exists():
        raise NoEnvironmentError(f"{folder} has no bin/vllm: make the environment with hack/vllm/install")
    # The environment's Python is a link to another installation, which must stay visible too.
    interpreter = (folder / "bin" / "python").resolve().parent.parent
    image = Image(
        entrypoint=(str(program), "serve"),
        path=(str(folder / "bin"),),
        env=_ENV,
        keep=(str(folder), str(interpreter)),
    )
    return dict.fromkeys(PATTERNS, image)
