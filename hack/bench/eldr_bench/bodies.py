"""CPU time of a router's event loop for one body at its limit, up to the decision where it goes: hostile bodies, and large honest ones.

Each body is as its row names: refused, or taken, else the program ends. Prints one JSON list of figures, see ``__main__.py``.
"""

from __future__ import annotations

import base64
import json
import random
import time
from typing import NamedTuple

from eldr_bench.proof import require
from eldr_router.api import bodies
from eldr_router.api.cost import MAX_BODY
from eldr_router.http.errors import RouterError

ROUNDS = 7
AIM = 20.0
"""Milliseconds: what other clients' streams may wait for."""


class Case(NamedTuple):
    """A body: ``begin``, then as many ``unit`` as there is room for, then ``end``."""

    name: str
    begin: str
    unit: str
    end: str
    taken: bool
    chat: bool = False
    size: int = MAX_BODY

    def body(self) -> bytes:
        """Return the bytes."""
        begin, unit, end = self.begin.encode(), self.unit.encode(), self.end.encode()
        many = begin + unit * ((self.size - len(begin) - len(end)) // len(unit))
        return (many.rstrip(b", ") if b"," in unit else many) + end

    def decide(self, raw: bytes) -> bool:
        """Return whether a router takes a body; it decides as much as it does before it knows an engine."""
        try:
            parsed = bodies.parse(raw, bodies.CHAT if self.chat else bodies.COMPLETIONS)
            if bodies.unsplittable(parsed) is not None:
                bodies.sequences(parsed)
            _ = parsed.beginning
        except RouterError as error:
            require(error.status == 400, f"{self.name}: {error}")
            return False
        return True


_BASE64 = base64.b64encode(random.Random(0).randbytes(3072)).decode()
_PICTURE = (
    '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
)
CASES = (
    Case("hostile, a list of ones", '{"prompt":[', "1,", "]}", False),
    Case("hostile, lists in lists", '{"prompt":[', "[[[[[[[[]]]]]]]],", "]}", False),
    Case("hostile, empty prompts", '{"prompt":[', '"",', "]}", False),
    Case("hostile, empty prompts in 2 MiB", '{"prompt":[', '"",', "]}", False, size=2 << 20),
    Case("hostile, ones in 2 MiB", '{"prompt":[', "1,", "]}", True, size=2 << 20),
    Case("hostile, a text, then ones", '{"prompt":["",', "1,", "]}", False, size=2 << 20),
    Case("hostile, messages", '{"messages":[', "{},", "]}", False, chat=True),
    Case("hostile, messages in 2 MiB", '{"messages":[', "{},", "]}", False, chat=True, size=2 << 20),
    Case("hostile, one field again and again", "{", '"a":0,', "}", False, size=2 << 20),
    Case("hostile, one key of vllm_xargs again and again", '{"vllm_xargs":{', '"a":0,', "}}", False),
    Case("hostile, tools", '{"messages":[],"tools":[', "{},", "]}", False, chat=True, size=2 << 20),
    Case("hostile, a number of digits", '{"prompt":"x","n":', "1", "}", False),
    Case("hostile, white space", '{"prompt":[', " ", "]}", False),
    Case("hostile, white space of 2 MiB in messages", '{"messages":[', " ", "]}", True, True, 2 << 20),
    Case("hostile, escapes", '{"prompt":"', "\\n", '"}', False),
    Case("hostile, two-byte characters", '{"prompt":"', "é", '"}', False),
    Case("honest, a picture of 16 MiB", _PICTURE, _BASE64, '"}}]}]}', True, chat=True),
    Case("honest, lists of two prompts of 16 MiB", '{"prompt":["x","', "abcdefgh", '"]}', True),
    Case("honest, 1,000,000 token ids", '{"prompt":[', "123456,", "]}", True, size=7_000_000),
    Case("honest, 6 MB of text", '{"prompt":"', "It was the best of times, ", '"}', True, size=6_000_000),
    Case("honest, 6 MB of Chinese", '{"prompt":"', "春眠不觉晓", '"}', True, size=6_000_000),
    Case("honest, 8 MB of Chinese in escapes", '{"prompt":"', "\\u6625", '"}', True, size=8_000_000),
    Case("honest, 100,000 token ids", '{"prompt":[', "12345, ", "]}", True, size=700_000),
)


def main() -> None:
    """Measure."""
    figures = []
    for case in CASES:
        raw, values = case.body(), []
        for _ in range(ROUNDS):
            begun = time.process_time_ns()
            taken = case.decide(raw)
            values.append((time.process_time_ns() - begun) / 1e6)
            require(taken is case.taken, f"{case.name}: {'taken' if taken else 'refused'}")
        name = f"one body, {case.name}: {'taken' if case.taken else 'refused'}"
        figures.append({"name": name, "unit": "ms", "aim": AIM, "values": values})
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
