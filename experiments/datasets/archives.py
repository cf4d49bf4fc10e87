"""The files of a data set, read out of a folder, a tar or a zip alike; nothing is unpacked to disk."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from unweave.errors import StoreError


def members(source: Path, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """The contents of the files whose path ends in what ``wanted`` matches, by its first group, sorted.

    The group is what the name is called whatever folders it lies in.

    Raises:
        StoreError: the source is not there, is damaged or no archive, or holds the same name twice.
    """
    found: dict[str, bytes] = {}
    try:
        for path, content in _walk(source, wanted):
            name = wanted.search(path)[1]  # type: ignore[index]
            if name in found:
                raise StoreError(f"{source} holds {name} more than once. Name the folder of one copy.")
            found[name] = content
    except FileNotFoundError as error:
        raise StoreError(
            f"{error.filename or source} does not exist. Name the data set's folder or archive."
        ) from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise StoreError(
            f"{source} is truncated or damaged ({error}). Expected: a whole .tar, .tar.gz, .tgz or .zip. Get it again."
        ) from error
    return {name: found[name] for name in sorted(found)}


def _walk(source: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    if source.is_dir():
        for folder, _, names in os.walk(source):
            for name in names:
                path = Path(folder, name)
                if wanted.search(relative := path.relative_to(source).as_posix()):
                    yield relative, path.read_bytes()
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            yield from ((name, archive.read(name)) for name in archive.namelist() if wanted.search(name))
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                if wanted.search(member.name) and (file := archive.extractfile(member)) is not None:
                    yield member.name, file.read()


def require(found: Mapping[str, object], names: list[str], source: Path, remedy: str) -> None:
    """Say which files are missing.

    Raises:
        StoreError: one is.
    """
    if missing := [name for name in names if name not in found]:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise StoreError(f"{source} lacks {shown}. {remedy}")


def sha256(*contents: bytes | memoryview) -> str:
    """Of the contents one after the other."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def check(found: Mapping[str, str], expected: Mapping[str, str], source: Path, remedy: str) -> None:
    """Compare SHA-256 by name.

    Raises:
        StoreError: one differs, with both values.
    """
    for name, value in expected.items():
        if found.get(name) != value:
            raise StoreError(
                f"The {name} in {source} are not those of the data set: SHA-256 {found.get(name)}, expected {value}. "
                f"{remedy}"
            )
