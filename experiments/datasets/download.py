"""Get a data set's official archive, with progress, and check it before it is kept."""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from experiments.datasets.archives import sha256
from experiments.datasets.cache import make_folder
from unweave.errors import StoreError
from unweave.files import write_atomically

PIECE = 1 << 20


def on_one_line(text: str) -> None:
    """Overwrite the last line of the terminal."""
    print(f"\r{text}", end="", file=sys.stderr, flush=True)


def download(url: str, target: Path, expected: str, say: Callable[[str], None] = on_one_line) -> Path:
    """The archive at ``url`` as the file ``target``; one that is there already is taken if its SHA-256 is right.

    Raises:
        StoreError: there is no network, the download broke off, or it is not the file that was expected.
    """
    if target.exists() and sha256(target.read_bytes()) == expected:
        return target
    make_folder(target.parent)
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            while piece := answer.read(PIECE):
                content += piece
                say(f"{url}: {len(content) >> 20} of {total >> 20 if total else '?'} MiB")
            say("\n")
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        raise StoreError(
            f"Cannot download {url}: {error}. Try again, or download it elsewhere and give the file as the source."
        ) from error
    if (found := sha256(bytes(content))) != expected:
        raise StoreError(
            f"{url} gave {len(content)} bytes with SHA-256 {found}, expected {expected}. Nothing was kept; try again."
        )
    write_atomically(target, bytes(content))
    return target
