"""Files of Go modules, such as the CustomResourceDefinitions of other projects."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from eldr_kube.binaries import BinariesUnavailableError, cache_folder, say_on_stderr
from eldr_kube.servers import find_go


def module(name: str, folder: Path) -> Path:
    """Return the folder of a Go module; skip the test where it cannot be had.

    Parameters
    ----------
    name : str
        With its version, as in ``example.com/module@v1.2.3``.
    folder : Path
        Of no module: the command runs there.
    """
    try:
        go = find_go(cache_folder(), say_on_stderr)
        command = [go, "mod", "download", "-json", name]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (BinariesUnavailableError, OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no {name} here: give this machine access to the Go module proxy ({error})")
    return Path(json.loads(said.stdout)["Dir"])
