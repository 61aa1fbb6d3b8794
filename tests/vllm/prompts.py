"""What real engines are asked: prompts of many lengths and languages, greedy, and what a plain engine answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.vllm.engines import BLOCK, NAME

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

_ENGLISH = (
    "The package manager keeps a list of what is installed, and removes what nothing else needs any more. "
)
_FRENCH = (
    "Le gestionnaire de paquets conserve la liste des logiciels installés et vérifie leurs dépendances. "
)
_RUSSIAN = "Менеджер пакетов хранит список установленных программ и проверяет их зависимости. "
_CHINESE = "软件包管理器保存已安装软件的列表，并检查它们的依赖关系。"  # noqa: RUF001
_PYTHON = "def read(path):\n    with open(path) as file:\n        return [line.strip() for line in file]\n\n"


def tokens(seed: int, n: int) -> list[int]:
    """Return so many random token ids, which every small model has a text for."""
    drawn: list[int] = np.random.default_rng(seed).integers(300, 4000, n).tolist()
    return drawn


@dataclass(frozen=True)
class Case:
    """One request without its transport: a path, a prompt, so many tokens."""

    name: str
    path: str
    prompt: Any
    tokens: int = 24

    def body(self, **fields: Any) -> dict[str, Any]:
        """Return a request body that gives token ids and exactly so many of them."""
        key = "prompt" if self.path == COMPLETIONS else "messages"
        body = {"model": NAME, key: self.prompt, "max_tokens": self.tokens, "temperature": 0}
        return body | {"ignore_eos": True, "return_token_ids": True} | fields


def _chat(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]


def _ids(count: int, start: int) -> list[int]:
    return [256 + (start * 613 + at * 97) % 3500 for at in range(count)]


OUTPUTS = (
    Case("one word", COMPLETIONS, "Debian"),
    Case("one block less one", COMPLETIONS, _ids(BLOCK - 1, 1)),
    Case("one block", COMPLETIONS, _ids(BLOCK, 2)),
    Case("one block and one", COMPLETIONS, _ids(BLOCK + 1, 3)),
    Case("four blocks", COMPLETIONS, _ids(4 * BLOCK, 4)),
    Case("english", COMPLETIONS, "Chapter 1. " + _ENGLISH * 8),
    Case("french", COMPLETIONS, "Chapitre 1. " + _FRENCH * 8),
    Case("russian", COMPLETIONS, "Глава 1. " + _RUSSIAN * 6),
    Case("chinese", COMPLETIONS, "第一章。" + _CHINESE * 8),
    Case("python", COMPLETIONS, "import os\n\n" + _PYTHON * 8),
    Case("long", COMPLETIONS, "Contents. " + (_ENGLISH + _FRENCH) * 24, 48),
    Case("same beginning", COMPLETIONS, "Chapter 1. " + _ENGLISH * 8 + "Chapter 2. "),
    Case("chat, one word", CHAT, _chat("Hello")),
    Case("chat, english", CHAT, _chat("Please continue: " + _ENGLISH * 6)),
    Case("chat, french", CHAT, _chat("Continuez : " + _FRENCH * 6)),
    Case("chat, russian", CHAT, _chat("Продолжайте: " + _RUSSIAN * 5)),
    Case("chat, chinese", CHAT, _chat("请继续：" + _CHINESE * 6)),  # noqa: RUF001
    Case("chat, python", CHAT, _chat("# explain\n" + _PYTHON * 6)),
    Case("chat, three turns", CHAT, _chat("What is a package?", _ENGLISH * 3, "And what is a dependency?")),
)
"""For comparing a pair of engines with a plain one."""

FRESH = tuple(
    Case(f"fresh {at}", *where)
    for at in range(27)
    for where in (
        [(COMPLETIONS, f"Section {at}. " + _ENGLISH * (4 + at % 5))]
        if at % 2
        else [(CHAT, _chat(f"Question {at}: " + _FRENCH * (4 + at % 5)))]
    )
)
"""For tests that need prompts whose blocks no engine has yet: even ones are chats."""

LONG = Case("long answer", COMPLETIONS, "Introduction. " + _ENGLISH, 1500)
"""Keeps a decode engine busy for longer than a short lease, and fills a small KV cache."""

FILLER = tuple(Case(f"filler {at}", COMPLETIONS, _ids(1500, 50 + at), 1) for at in range(4))
"""Overwrites the whole KV cache of an engine."""

ALL = (*OUTPUTS, *FRESH, LONG)
