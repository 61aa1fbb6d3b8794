"""Downloads a model into the hub's cache, and says in a word why it could not. Runs in the engine's image, alone.

The operator passes this text to ``python3 -c`` there, with the model and its revision: vLLM's images hold ``huggingface_hub``, and
nothing of ours. So it imports nothing else. The container's last words are ``REASON: text`` (:mod:`eldr_operator.workloads.downloads`).
"""

from __future__ import annotations

import errno
import importlib
import sys
from pathlib import Path
from typing import Any

LAST_WORDS = Path("/dev/termination-log")
MOST_CHARACTERS = 2000
OTHER_FORMATS = (
    *("*.bin", "*.pt", "*.pth", "*.msgpack", "*.h5", "*.onnx", "*.gguf"),
    *("original/*", "metal/*", "onnx/*", "openvino/*"),
)
"""What vLLM leaves where there are safetensors: copies of the same weights."""
UNAUTHORIZED, MISSING = {401, 403}, {404}
FULL = {errno.ENOSPC, errno.EDQUOT}
NO_ANSWER = {"ConnectError", "ConnectionError", "ConnectTimeout", "ProxyError", "ReadTimeout"}
"""Of the clients that releases of ``huggingface_hub`` use."""
CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def main(model: str, revision: str) -> int:
    """Download a snapshot; return the exit code."""
    try:
        download(model, revision)
    except Exception as error:  # noqa: BLE001 - whatever it is, the container's last words say so
        tell(f"{reason(error)}: {text(error)}")
        return 1
    return 0


def download(model: str, revision: str) -> None:
    """Download what vLLM reads of a snapshot; files that are there already stay."""
    hub: Any = importlib.import_module("huggingface_hub")
    files = hub.HfApi().list_repo_files(model, revision=revision or None)
    ignored = OTHER_FORMATS if any(name.endswith(".safetensors") for name in files) else ()
    path = hub.snapshot_download(model, revision=revision or None, ignore_patterns=[*ignored])
    sys.stdout.write(f"{model} lies in {path}\n")


def reason(error: BaseException) -> str:
    """Return the word for an error, by the answer of the hub or the number of the system's error that lies below it."""
    for cause in causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        number = getattr(cause, "errno", None)
        if status in UNAUTHORIZED:
            return "Unauthorized"
        if status in MISSING:
            return "NotFound"
        if number in FULL or "No space left" in str(cause):  # of a download by Xet only the text tells
            return "NoSpace"
        if number in CLOSED:
            return "NotWritable"
        if status is not None or type(cause).__name__ in NO_ANSWER:
            return "Unreachable"
    return "DownloadFailed"


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and what it was raised from."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def text(error: BaseException) -> str:
    """Return what an error says, in one line; the hub's request numbers differ each time, and would rewrite the status."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    kept = [line.split(" (Request ID")[0].strip() for line in lines if not line.startswith("Request ID")]
    return " ".join(kept) or type(error).__name__


def tell(words: str) -> None:
    """Leave the last words where the kubelet reads them."""
    sys.stderr.write(words + "\n")
    LAST_WORDS.write_text(words[:MOST_CHARACTERS])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
