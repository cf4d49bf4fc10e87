"""Putting a page in its place: all of it or nothing, and nothing that is there already without being asked."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from unweave.errors import ConfigError, StoreError
from unweave.files import write_atomically


def require_place(path: str | PathLike[str], inputs: tuple[Path, ...] = (), force: bool = False) -> None:
    """Refuse a place before the work is done.

    Raises:
        ConfigError: an input is there, a folder, or (without ``force``) anything at all; or there is no folder for it.
        StoreError: no permission to write there.
    """
    target = Path(path)
    if any(target.resolve() == Path(taken).resolve() for taken in inputs):
        raise ConfigError(f"The report would overwrite {target}, which it is made from. Choose another place.")
    if target.is_dir():
        raise ConfigError(f"Cannot write the report to {target}: it is a folder. Name a file.")
    if target.exists() and not target.is_file():
        raise ConfigError(f"Cannot write the report to {target}: it is no ordinary file. Name another.")
    if not target.parent.is_dir():
        raise ConfigError(f"Cannot write the report to {target}: there is no folder {target.parent}. Make it first.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise StoreError(f"Cannot write the report to {target}: no permission in {target.parent}. Choose another.")
    if target.exists() and not force:
        raise ConfigError(f"{target} is there already. Choose another place, or overwrite it: --force, force=True.")


def place(page: str, path: str | PathLike[str]) -> None:
    """Write a page under a temporary name beside its place, then rename it.

    Raises:
        StoreError: with the reason; what was there before is still there, and nothing else is left behind.
    """
    write_atomically(path, page.encode("utf-8"))
