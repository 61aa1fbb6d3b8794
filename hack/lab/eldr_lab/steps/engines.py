"""Engines in processes of their own, as whoever asks them sees them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection, Listener, Pipe
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from eldr_bench.machine import ROOT, vllm_environment
from eldr_bench.proof import require
from eldr_lab.steps.machine import VARIABLES, WIDTH, Step, wide_model

_PATIENCE = 60.0


class Recorded(NamedTuple):
    """What a request computed alone did.

    Attributes
    ----------
    prefill : ndarray of int64, shape (n_layers, n_experts)
        Tokens of the prompt that chose each expert.
    decode : ndarray of int64, shape (n_steps, n_layers, top_k)
        Experts that each decode step chose.
    """

    prefill: npt.NDArray[np.int64]
    decode: npt.NDArray[np.int64]


class EngineEndedError(click.ClickException):
    """An engine's process is gone."""


class Engine:
    """One engine's process.

    Parameters
    ----------
    connection : Connection
    listener : Listener
        Where its forks connect.
    """

    def __init__(self, connection: Connection, listener: Listener) -> None:
        self._connection = connection
        self._listener = listener

    def wait(self) -> None:
        """Return when it answers."""
        self._ask("ready")

    def about(self) -> dict[str, Any]:
        """Return what computes there."""
        about: dict[str, Any] = self._ask("about")
        return about

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        tokens: list[int] = self._ask("encode", text)
        return tokens

    def record(self, prompt: list[int], tokens: int, seed: int) -> Recorded:
        """Compute a request alone; the engine keeps its prompt's KV."""
        prefill, decode = self._ask("record", prompt, tokens, seed)
        return Recorded(np.array(prefill), np.array(decode))

    def add(self, name: str, prompt: list[int], tokens: int, seed: int) -> None:
        """Give it a request."""
        self._ask("add", name, prompt, tokens, seed)

    def step(self) -> Step:
        """Run a step."""
        step: Step = self._ask("step")
        return step

    def reference(self) -> float:
        """Return the seconds of a step that is always the same; of an idle engine only."""
        seconds: float = self._ask("reference")
        return seconds

    @contextmanager
    def forks(self, n: int) -> Iterator[list[Engine]]:
        """Give so many others with all that this one holds; they end with the block."""
        with ExitStack() as stack:
            yield [stack.enter_context(closing(self._fork())) for _ in range(n)]

    def _fork(self) -> Engine:
        self._ask("fork")
        return Engine(self._listener.accept(), self._listener)

    def close(self) -> None:
        """End the process."""
        self._connection.close()

    def _ask(self, *call: Any) -> Any:
        try:
            self._connection.send(call)
            return self._connection.recv()
        except (EOFError, ConnectionError) as error:
            raise EngineEndedError(f"an engine ended while asked to {call[0]}") from error


def prove(about: dict[str, Any], dtype: str) -> str:
    """End the program unless an engine is of the kind that the pages name; return the version of its vLLM."""
    expected = {"device": "cpu", "dtype": dtype, "width": WIDTH, "eager": True, "threads": 1}
    require(about | expected == about, f"the engine says {about}, not {expected}")
    return str(about["vllm"])


@contextmanager
def first_engine(dtype: str, log: str) -> Iterator[Engine]:
    """Start an engine with the wide model; it ends with the block.

    Parameters
    ----------
    dtype : str
    log : str
        Name of the file under ``out`` that what vLLM prints is added to.

    Raises
    ------
    EngineEndedError
        If it does not start, or ends before the block; the message has the end of the log.
    """
    python = vllm_environment() / "bin" / "python"
    model, printed = wide_model(python), ROOT / "out" / log
    printed.parent.mkdir(exist_ok=True)
    ours, theirs = Pipe()
    with tempfile.TemporaryDirectory() as folder, printed.open("ab") as errors:
        address = f"{folder}/forks"
        with Listener(address, "AF_UNIX") as listener, ours:
            with theirs:
                # -P: nothing in the working directory may hide a package
                process = subprocess.Popen(
                    [
                        python,
                        "-P",
                        "-m",
                        "eldr_lab.steps.server",
                        str(theirs.fileno()),
                        address,
                        model,
                        dtype,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **VARIABLES},
                )
            engine = Engine(ours, listener)
            try:
                engine.wait()
                yield engine
            except EngineEndedError as error:
                raise EngineEndedError(f"{error}: {printed.read_text(errors='replace')[-2000:]}") from error
            finally:
                engine.close()
                try:
                    process.wait(_PATIENCE)
                finally:
                    process.kill()
                    process.wait()
