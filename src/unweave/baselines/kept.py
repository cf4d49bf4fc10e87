"""Tensors with a record, in one file: safetensors, written whole or not at all, checked when read, never unpickled.

The metadata holds the kind of file and its version, a record in JSON, and a SHA-256 over all of that and the tensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from unweave.errors import StoreError
from unweave.files import write_atomically
from unweave.store import digest_of, metadata_of

VERSION = "1"


def keep(path: str | PathLike[str], kind: str, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors and a record that JSON can hold.

    Raises:
        StoreError: the file cannot be written; what was there before is still there.
    """
    # A clone each: safetensors refuses two names for one memory, as tied weights have.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    header = {"format": f"unweave.{kind}", "version": VERSION, "record": json.dumps(dict(record))}
    header["sha256"] = digest_of(plain, header)
    write_atomically(path, safetensors_bytes(plain, metadata=header))


def read(path: str | PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors that :func:`keep` wrote.

    Raises:
        StoreError: the file is missing, damaged, altered, of another kind or of another version.
    """
    try:
        blob = Path(path).read_bytes()
    except OSError as error:
        raise StoreError(
            f"Cannot read {path}: {error.strerror or error}. Pass the {kind} file that was kept."
        ) from error
    try:
        tensors = parse_safetensors(blob)
        header = metadata_of(blob)
    except (SafetensorError, ValueError, struct.error) as error:
        raise StoreError(f"{path} is damaged or not a safetensors file ({error}). Restore it.") from error
    if (header.get("format"), header.get("version")) != (f"unweave.{kind}", VERSION):
        found = f"{header.get('format')} version {header.get('version')}"
        raise StoreError(f"{path} is {found}. Supported: unweave.{kind} version {VERSION}.")
    if digest_of(tensors, header) != header.get("sha256"):
        raise StoreError(f"{path} was altered: its SHA-256 is not the one recorded in it. Restore it.")
    record: dict[str, Any] = json.loads(header["record"])
    return record, tensors
