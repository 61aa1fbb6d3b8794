"""A vLLM engine as a process that others ask; it forks itself into more of them. Needs vLLM.

    python -P -m eldr_lab.steps.server FD ADDRESS MODEL DTYPE

Answers calls ``(name, *arguments)`` on the open file FD until its other end is closed; forks connect to the Unix socket ADDRESS and do
the same. See :class:`Calls`.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Client, Connection
from typing import Any

from eldr_lab.steps.engine import Engine
from eldr_lab.steps.machine import N_EXPERTS, Step


class Calls:
    """What can be asked.

    Parameters
    ----------
    model : str
        Folder.
    dtype : str
    """

    def __init__(self, model: str, dtype: str) -> None:
        from transformers import AutoTokenizer

        self._engine = Engine(model, dtype)
        self._encode = AutoTokenizer.from_pretrained(model, local_files_only=True).encode
        self._recorded = 0

    def ready(self) -> None:
        """Answer."""

    def about(self) -> dict[str, Any]:
        """Return what computes here."""
        return self._engine.about()

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens."""
        return list(self._encode(text))

    def record(self, prompt: list[int], tokens: int, seed: int) -> tuple[list[list[int]], list[Any]]:
        """Compute a request alone, and keep its prompt's KV.

        Returns
        -------
        prefill : list of list of int
            How often the prompt chose each expert, layer by layer.
        decode : list
            Experts of each decode step, [step][layer][choice].
        """
        self._recorded += 1
        self._engine.add(f"record-{self._recorded}", prompt, tokens, seed)
        prefill, decode = self._engine.step(), []
        counts = self._engine.counts(N_EXPERTS)
        if prefill.rows != len(prompt):
            raise ValueError(
                f"prompt: {len(prompt) - prefill.rows} of {len(prompt)} tokens were computed before"
            )
        while self._engine.busy:
            self._engine.step()
            decode.append(self._engine.choices())
        return counts, decode

    def add(self, name: str, prompt: list[int], tokens: int, seed: int) -> None:
        """Take a request."""
        self._engine.add(name, prompt, tokens, seed)

    def step(self) -> Step:
        """Run a step."""
        return self._engine.step()

    def reference(self) -> float:
        """Return the seconds of a step that is always the same."""
        return self._engine.reference()


def serve(connection: Connection[Any, Any], address: str, calls: Calls) -> None:
    """Answer calls until the other side is gone; ``fork`` begins another process with all that this one holds."""
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        if name != "fork":
            connection.send(getattr(calls, name)(*arguments))
        elif os.fork():
            connection.send(None)
        else:
            connection.close()
            connection = Client(address, "AF_UNIX")


def main() -> None:
    """Serve; whatever vLLM prints goes to stderr."""
    fd, address, model, dtype = sys.argv[1:]
    os.dup2(2, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a fork ended
    serve(Connection(int(fd)), address, Calls(model, dtype))
    os._exit(0)  # a fork that tidies up after the engine takes what the others share for its own


if __name__ == "__main__":
    main()
