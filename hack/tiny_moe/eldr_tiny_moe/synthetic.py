"""Generated text of several kinds, for machines that hold too little of the real thing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

PHRASES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "french": (
        ("Pour cette raison,", "Dans ce cas,", "En général,", "Avant la mise à jour,", "Le plus souvent,"),
        (
            "le fichier de configuration",
            "la nouvelle version du noyau",
            "l'administrateur du réseau",
            "le paquet",
        ),
        ("doit contenir", "remplace", "ne modifie pas", "permet de choisir", "vérifie d'abord"),
        ("les droits de l'utilisateur", "la liste des dépôts", "une adresse valide", "chaque partition"),
        ("lors du prochain démarrage.", "sans aucune erreur.", "dans le répertoire courant.", "à la main."),
    ),
    "russian": (
        ("Поэтому", "При этом", "Как правило,", "Перед обновлением", "После установки"),
        ("файл настройки", "новая версия ядра", "администратор сети", "выбранный пакет", "эта команда"),
        ("должен содержать", "заменяет", "не изменяет", "позволяет выбрать", "сначала проверяет"),
        ("права пользователя", "список репозиториев", "правильный адрес", "каждый раздел диска"),
        ("при следующей загрузке.", "без ошибок.", "в текущем каталоге.", "вручную."),
    ),
    "chinese": (
        ("因此", "在这种情况下", "一般来说", "升级之前", "安装完成后"),
        ("配置文件", "新的内核版本", "网络管理员", "所选的软件包", "这个命令"),
        ("必须包含", "将会替换", "不会修改", "可以选择", "首先检查"),
        ("用户的权限", "软件仓库列表", "有效的地址", "每一个分区", "系统的默认设置"),
        ("并在下次启动时生效。", "而不会出错。", "在当前目录中。", "需要手动完成。"),
    ),
}
WORDS = ("alpha", "buffer", "client", "delta", "engine", "filter", "group", "handle", "index", "journal")


def sentence(kind: str, rng: random.Random) -> str:
    """Return one sentence: one phrase from each group, in order."""
    return ("" if kind == "chinese" else " ").join(rng.choice(group) for group in PHRASES[kind])


def table_row(rng: random.Random) -> str:
    """Return one line of a table of measured values."""
    values = "  ".join(f"{rng.gauss(0, 1000):10.2f}" for _ in range(4))
    return f"{rng.randint(1970, 2030)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}  {values}\n"


def record(rng: random.Random) -> str:
    """Return one line of JSON."""
    fields: dict[str, object] = {
        "id": rng.getrandbits(32),
        "name": rng.choice(WORDS),
        "ok": rng.random() < 0.5,
    }
    fields |= {rng.choice(WORDS): [rng.randint(0, 99) for _ in range(rng.randint(1, 4))] for _ in range(3)}
    return json.dumps(fields) + "\n"


def _prose(kind: str) -> Callable[[random.Random], str]:
    ending = "" if kind == "chinese" else " "
    return lambda rng: sentence(kind, rng) + (ending if rng.random() < 0.8 else "\n\n")


PIECES: Mapping[str, Callable[[random.Random], str]] = {
    "numbers": table_row,
    "json": record,
    **{kind: _prose(kind) for kind in PHRASES},
}
"""Makers of one piece of text, by kind."""


def generate(kind: str, characters: int, seed: int) -> str:
    """Return at least ``characters`` characters of a kind; the same for the same arguments, on every machine."""
    piece = PIECES[kind]
    rng = random.Random(f"{seed}:{kind}")
    parts: list[str] = []
    length = 0
    while length < characters:
        parts.append(piece(rng))
        length += len(parts[-1])
    return "".join(parts)
