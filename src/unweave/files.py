"""Files that are written whole or not at all. Nothing here needs PyTorch."""

from __future__ import annotations

import contextlib
import os
import secrets
from os import PathLike
from pathlib import Path

from unweave.errors import StoreError


def write_atomically(path: str | PathLike[str], content: bytes) -> None:
    """Write to a temporary file beside the target, sync it, rename it over the target, sync the folder.

    Raises:
        StoreError: with the reason; the target is then as it was before, and no temporary file is left.
    """
    target = Path(path).resolve()
    if _is_special(target):
        raise StoreError(f"Cannot write {target}: it is no ordinary file. Nothing was changed; choose another place.")
    # The process id alone is not enough: in a container it is the same after a crash.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        reason = error.strerror or error
        remedy = "free space or choose another place" if target.parent.is_dir() else f"make the folder {target.parent}"
        raise StoreError(f"Cannot write {target}: {reason}. Nothing was changed; {remedy}.") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    sync_folder(target.parent)


def _is_special(path: Path) -> bool:
    """Whether there is a device or a pipe, which a rename would replace; what else is wrong, writing will tell."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Make a rename durable where the file system can; it has happened already, so a failure changes nothing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
