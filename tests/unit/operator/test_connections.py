"""Many watches in one process: its limit of open files, and the memory of each connection."""

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import logging, resource, sys
from asyncio import sslproto
from eldr_operator.connections import make_room
logging.basicConfig(format="%(message)s", stream=sys.stdout)
make_room(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE), sslproto.SSLProtocol.max_size)
"""


@pytest.mark.parametrize(
    ("limits", "watches", "files", "says"),
    [
        ((64, 512), 15, 512, ""),
        ((512, 512), 15, 512, ""),
        ((64, 512), 1050, 512, "RLIMIT_NOFILE) is 512, and 1050"),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may(limits, watches, files, says):
    """In a process of its own: a hard limit that was lowered cannot be raised again."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(watches)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
        capture_output=True,
        text=True,
        check=True,
    )
    *said, found = ran.stdout.splitlines()
    assert found == f"{files} 512 {32 * 1024}"
    assert says in " ".join(said)
    assert bool(said) == bool(says)
