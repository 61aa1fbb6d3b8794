"""The log of programs that run in pods."""

import re
import subprocess
import sys

import pytest


@pytest.mark.process
def test_a_line_tells_its_time_zone():
    program = "import logging; from eldr.logs import write_logs; write_logs('info'); logging.getLogger('a').info('b')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO a: b\n", done.stderr)
