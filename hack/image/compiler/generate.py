"""Makes C of Python modules. Runs by an interpreter of the version that the C is for, at the root of the repository.

generate.py FOLDER PYTHON NAME MODULE... writes C into FOLDER, takes the types of dependencies from PYTHON's environment, and prints
a JSON list of extensions: name, C files, folders of headers.
"""

import contextlib
import json
import sys
from pathlib import Path

import mypyc
from mypyc.build import mypycify


def main(folder: str, python: str, name: str, *modules: str) -> None:
    """Generate."""
    options = ["--config-file", "pyproject.toml", "--python-executable", python]
    with contextlib.redirect_stdout(sys.stderr):
        extensions = mypycify([*options, *modules], group_name=name, target_dir=folder, debug_level="0")
    runtime = str(Path(mypyc.__file__).parent / "lib-rt")
    print(json.dumps([[each.name, each.sources, [runtime, *each.include_dirs]] for each in extensions]))


main(*sys.argv[1:])
