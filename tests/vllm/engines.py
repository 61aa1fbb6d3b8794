"""Real vLLM engines as processes: start, wait until they serve, stop for a while, end by id.

Each engine is a session of its own (API server, engine core, worker, resource tracker), so that one signal reaches all of
it and nothing else. The settings are the lightest that still run everything: float32 on the CPU, no compilation, a small
KV cache, one thread each, NIXL over loopback.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from eldr import contract
from eldr_kube.ports import free_port
from tests.support import processes

wait_for = functools.partial(processes.wait_for, every=0.2)
"""Real engines are slow enough to be asked seldom, and answering costs them time."""

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "hack" / "tiny_moe" / "model"
NAME = "tiny-moe"
BLOCK = 32
MOST_RANKS = 8
"""Each data-parallel rank listens on the side channel's port plus its number."""
STOP_SECONDS = 30.0
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "UCX_TLS": "tcp,sm,self",
    "UCX_NET_DEVICES": "lo",
    # naming plug-ins is also what makes vLLM load endpoint plug-ins
    "VLLM_PLUGINS": "eldr,eldr_cpu",
    "ELDR_CPU_SHARED_CORES": "1",
}


class Mode(NamedTuple):
    """What computes and schedules in an engine.

    Attributes
    ----------
    runner : {"V1", "V2"}
    scheduler : {"synchronous", "asynchronous"}
    """

    runner: str
    scheduler: str

    @property
    def env(self) -> dict[str, str]:
        """What an engine's environment says for it."""
        asked = {"VLLM_USE_V2_MODEL_RUNNER": str(int(self.runner == "V2"))}
        asked |= {"TRITON_INTERPRET": "1"} if self.runner == "V2" else {}
        return asked | ({"ELDR_CPU_ASYNC": "1"} if self.scheduler == "asynchronous" else {})


CPU_MODE = Mode("V1", "synchronous")
"""What vLLM picks on a CPU."""
GPU_MODE = Mode("V2", "asynchronous")
"""What vLLM runs in on GPUs."""
ENV_MODE = "ELDR_VLLM_MODE"
"""Names the mode of all engines that tests ask for none, as ``V2-asynchronous``; ``make e2e-vllm-all MODE=...`` sets it."""


def asked_mode() -> Mode | None:
    """Return the mode that the environment names, if it names one."""
    if not (text := os.environ.get(ENV_MODE)):
        return None
    runner, _, scheduler = text.partition("-")
    if runner not in {"V1", "V2"} or scheduler not in {"synchronous", "asynchronous"}:
        raise ValueError(f"{ENV_MODE}: expected V1 or V2, then -synchronous or -asynchronous, got {text!r}")
    return Mode(runner, scheduler)


Role = Literal["prefill", "decode", "both", "plain"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an engine is started.

    Attributes
    ----------
    role : {"prefill", "decode", "both", "plain"}
        ``both`` has our connector and no transport, ``plain`` no connector at all.
    lease : int
        Seconds that a prefill engine keeps blocks for their pull.
    blocks : int
        KV cache in blocks of 32 tokens.
    max_len : int
        Longest prompt plus output.
    children : tuple of str
        Connectors of tests to load beside the transport: ``Gate`` can hold the engine after a pull, ``Saboteur`` make ranks differ.
    mode : Mode or None
        What runs inside, by default what :func:`asked_mode` says; None: what vLLM picks on this machine.
    plugin : Path or None
        Folder with the ``eldr`` package whose connector runs beside the transport; None for the transport alone.
    arguments, env : more of both
    """

    role: Role
    lease: int = 60
    blocks: int = 1024
    max_len: int = 2048
    children: tuple[str, ...] = ()
    mode: Mode | None = field(default_factory=asked_mode)
    plugin: Path | None = None
    model: Path = MODEL
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    @property
    def is_witnessed(self) -> bool:
        """Whether a connector beside ours reports which mode the engine runs in; one that does both has it with model runner V2 only."""
        both = self.role == "both" and self.mode is not None and self.mode.runner == "V2"
        return both or self.role in {"prefill", "decode"}

    def transfer_config(self) -> dict[str, Any]:
        """Return what ``--kv-transfer-config`` gets."""
        ours = {
            "kv_connector": "EldrConnector",
            "kv_role": "kv_consumer" if self.role == "decode" else "kv_producer",
        }
        if self.role == "both" and not self.is_witnessed:
            return ours
        role = {"prefill": "kv_producer", "both": "kv_both"}.get(self.role, "kv_consumer")
        nixl = {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"num_threads": 1, "kv_lease_duration": self.lease},
        }
        children: list[dict[str, Any]] = [] if self.role == "both" else [nixl]
        if self.plugin:  # as the operator has it: it is asked first
            children.insert(0, ours)
        for name in ("Witness", *self.children):
            module = {"kv_connector_module_path": f"eldr_test_{name.lower()}"}
            children.append({"kv_connector": name, "kv_role": role, **module})
        config: dict[str, Any] = {
            "kv_connector": "MultiConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"connectors": children},
        }
        if self.role == "decode":
            config["kv_load_failure_policy"] = "fail"
        return config


class Engine:
    """One engine; it keeps its ports over restarts.

    Parameters
    ----------
    name : str
    setup : Setup
    program : Path
        The environment made by ``hack/vllm/install``.
    folder : Path
        For its log and gate.
    """

    def __init__(self, name: str, setup: Setup, program: Path, folder: Path) -> None:
        self.name = name
        self.setup = setup
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gate = folder / f"{name}.gate"
        self.gate.mkdir(parents=True)
        self._side_port = free_port(in_a_row=MOST_RANKS)
        self._program = program
        self._folder = folder
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Engine {self.name} {self.url} {'up' if self.running() else 'down'}>"

    @property
    def log(self) -> Path:
        """The log of the latest start."""
        return self._folder / f"{self.name}-{self._starts}.log"

    def start(self) -> None:
        """Start it; :meth:`ready` tells when it serves."""
        assert self._process is None
        self._starts += 1
        paths = [str(Path(__file__).parent / "engine_side")]
        paths += [str(self.setup.plugin)] if self.setup.plugin else []
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("VLLM_", "ELDR_", "PYTHON"))
        }
        env |= _QUIET | {
            "PATH": f"{self._program / 'bin'}:{os.environ['PATH']}",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self._side_port),
            "ELDR_TEST_GATE": str(self.gate),
            "PYTHONPATH": ":".join(paths),
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env | (self.setup.mode.env if self.setup.mode else {}) | self.setup.env,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        setup = self.setup
        layers, heads, width = _kv_shape(setup.model)
        cache = setup.blocks * BLOCK * layers * heads * width * 2 * 4
        command = [
            str(self._program / "bin" / "vllm"),
            "serve",
            str(setup.model),
            "--served-model-name",
            NAME,
        ]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", "--enforce-eager"]
        command += ["--max-model-len", str(setup.max_len), "--max-num-seqs", "16"]
        command += ["--kv-cache-memory-bytes", str(cache), "--block-size", str(BLOCK)]
        if setup.role != "plain":
            command += ["--kv-transfer-config", json.dumps(setup.transfer_config())]
        return [*command, *setup.arguments]

    def running(self) -> bool:
        """Tell whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def ready(self) -> bool:
        """Tell whether it serves; fail, with the end of its log, if it ended, or runs in another mode than it should."""
        if not self.running():
            raise AssertionError(f"{self.name} ended: {self.tail()}")
        try:
            up = httpx.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False
        if up and self.setup.is_witnessed:
            wanted = self.setup.mode or CPU_MODE
            assert self.mode() == wanted, f"{self.name} runs in {self.mode()}, not {wanted}: {self.tail()}"
        return up

    def mode(self) -> Mode:
        """Return what the engine itself says to run in."""
        return Mode(*((self.gate / what).read_text() for what in Mode._fields))

    def tail(self, lines: int = 40) -> str:
        """Return the end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def members(self) -> dict[int, str]:
        """Return the command lines of its processes that live, by id."""
        if self._process is None:
            return {}
        return _session(self._process.pid)

    def pause(self, only: str = "") -> None:
        """Stop all of it, or the processes whose command lines hold a word.

        Sockets stay open, so that connections and requests are accepted but not read.
        """
        assert any(only in command for command in self.members().values()), self.members()
        self._signal(signal.SIGSTOP, only)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask its first process to end, as a kubelet does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all of it at once, as a node that fails does."""
        self._signal(signal.SIGKILL)
        self._reap()

    def kill_part(self, only: str) -> None:
        """End the processes whose command lines hold a word, as a kernel short of memory does."""
        assert any(only in command for command in self.members().values()), self.members()
        self._signal(signal.SIGKILL, only)

    def exited(self) -> bool:
        """Tell whether nothing of it is left."""
        if self._process is not None and (self._process.poll() is None or self.members()):
            return False
        self._process = None
        return True

    def stop(self) -> None:
        """End it, by force if it takes too long."""
        if self._process is None:
            return
        self.resume()
        if self.running():
            self.terminate()
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.members(), f"{self.name} to end", STOP_SECONDS)
        self.kill()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.members(), f"all of {self.name} to be gone", STOP_SECONDS)
        for pid in self.members():  # a tracker that waits for a pipe which nobody closes
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.members(), f"all of {self.name} to be gone", STOP_SECONDS, self.members)
        self._process = None

    def _signal(self, number: int, only: str = "") -> None:
        for pid, command in self.members().items():
            if only not in command:
                continue
            # the resource tracker outlives a crash too: it removes what the others left in /dev/shm, then it ends
            if number != signal.SIGKILL or "resource_tracker" not in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def metric(self, name: str, **labels: str) -> float:
        """Do what :func:`metric` does."""
        return metric(self.url, name, **labels)

    def requests(self) -> float:
        """Return how many requests it works on or keeps waiting."""
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")


def metric(url: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    text = httpx.get(f"{url}{contract.PATH_METRICS}", timeout=60).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def _kv_shape(model: Path) -> tuple[int, int, int]:
    config = json.loads((model / "config.json").read_text())
    config = config.get("text_config", config)
    return config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]


def _session(leader: int) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # pid (comm) state ppid pgrp session ...; comm may hold anything, so cut after its closing bracket
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
