"""Files: safetensors with metadata, written atomically, versioned, and checked when read.

A Gram is symmetric, so its upper triangle is stored: [groups, d (d + 1) / 2], row by row. The metadata holds the format
and its version, what the Grams were made from, and a SHA-256 over all of that and all tensors. Nothing here ever
unpickles.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from unweave.behaviour.outcomes import LEVELS, ClassProfile, counted
from unweave.behaviour.spread import BINS, MarginCounts
from unweave.errors import ConfigError, StoreError
from unweave.files import write_atomically
from unweave.grams import CONVOLUTIONS, LayerGrams, LayerInfo, Origin
from unweave.reading.rest import bytes_of

FORMAT = "unweave.grams"
VERSION = 1
PROFILE = "held_out"
SPREAD = "margins.counts"
MEANT = "Pass the file that grams.save() wrote."


def save_grams(
    grams: LayerGrams,
    path: str | PathLike[str],
    dtype: torch.dtype = torch.float64,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write Grams to a file; either all of it is there afterwards or nothing changed.

    Args:
        grams: what to keep.
        path: the file, by convention ``*.safetensors``.
        dtype: float64, or float32 for half the size; a later subtraction is then exact to float32 only.
        notes: something to keep beside them, for :func:`load_with_notes`.

    Raises:
        ConfigError: another dtype.
        StoreError: the file cannot be written (no such folder, no permission, disk full).
    """
    if dtype not in (torch.float64, torch.float32):
        raise ConfigError(f"Invalid dtype: {dtype}. Supported: torch.float64, torch.float32.")
    tensors = {f"gram.{name}": _pack(grams.grouped(name).cpu()).to(dtype) for name in grams}
    if grams.held_out is not None:
        tensors |= {f"{PROFILE}.{key}": value for key, value in vars(grams.held_out).items()}
    if grams.margins is not None:
        tensors[SPREAD] = grams.margins.counts.int()
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "dtype": str(dtype).removeprefix("torch."),
        "origin": json.dumps(asdict(grams.origin)),
        "layers": json.dumps({name: asdict(info) for name, info in grams.layers.items()}),
    }
    if notes is not None:
        header["notes"] = json.dumps(dict(notes))
    header["sha256"] = digest_of(tensors, header)
    write_atomically(path, safetensors_bytes({k: v.contiguous() for k, v in tensors.items()}, metadata=header))


def load_grams(path: str | PathLike[str]) -> LayerGrams:
    """Read and check what :func:`save_grams` wrote.

    Raises:
        StoreError: the file is missing, truncated, altered, of another kind, or of another version.
    """
    return load_with_notes(path)[0]


def load_with_notes(path: str | PathLike[str]) -> tuple[LayerGrams, dict[str, str]]:
    """The same with the notes that were kept beside the Grams."""
    header, tensors = _read(path)
    origin, layers = _made_from(path, header)
    if origin.samples < 1 or any(info.rows < 0 for info in layers.values()):
        raise StoreError(f"{path} is damaged: it counts {origin.samples} samples, or rows below zero. Fit again.")
    grams = {name: _checked_gram(path, name, info, tensors.get(f"gram.{name}")) for name, info in layers.items()}
    found = LayerGrams(grams, layers, origin, _profile(path, tensors), _spread(path, tensors))
    return found, json.loads(header.get("notes", "{}"))


def _made_from(path: str | PathLike[str], header: Mapping[str, str]) -> tuple[Origin, dict[str, LayerInfo]]:
    try:
        return _origin(header), _layers(header)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: its metadata cannot be read ({error!r}). Fit again.") from error


def _origin(header: Mapping[str, str]) -> Origin:
    fields: dict[str, Any] = json.loads(header["origin"])
    fields["forgotten"] = tuple(fields["forgotten"])
    fields["labels"] = tuple(fields.get("labels", ()))
    fields.setdefault("drifted", bool(fields["forgotten"]))  # files that do not say it are of requests without first=
    if header["dtype"] == "float32":
        fields["stored"] = "float32"
    origin = Origin(**fields)
    if origin.convolutions not in CONVOLUTIONS:
        raise ValueError(f"convolutions of {origin.convolutions!r}")
    return origin


def _layers(header: Mapping[str, str]) -> dict[str, LayerInfo]:
    infos: dict[str, dict[str, Any]] = json.loads(header["layers"])
    return {
        name: LayerInfo(**(fields | {"weight_shape": tuple(fields["weight_shape"])})) for name, fields in infos.items()
    }


def _read(path: str | PathLike[str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        blob = Path(path).read_bytes()
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror or error}.", remedy=MEANT) from error
    try:
        tensors = parse_safetensors(blob)
        header = metadata_of(blob)
    except (SafetensorError, ValueError, KeyError, struct.error) as error:
        raise StoreError(
            f"{path} is damaged or not a safetensors file ({error}).", remedy="Restore it or fit again."
        ) from error
    if header.get("format") != FORMAT:
        raise StoreError(f"{path} is a safetensors file of something else.", remedy=MEANT)
    _require_version(path, header)
    if digest_of(tensors, header) != header.get("sha256"):
        raise StoreError(f"{path} was altered: its SHA-256 is not the one recorded in it. Restore it or fit again.")
    return header, tensors


def holds_grams(path: str | PathLike[str]) -> bool:
    """Whether there is a file that says it holds Grams; what else is in it is not looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            return bool((file.metadata() or {}).get("format") == FORMAT)
    except (OSError, SafetensorError):
        return False


def origin_in(path: str | PathLike[str]) -> Origin | None:
    """What the Grams in a file were made from, by its metadata alone; None where nothing there says it holds Grams.

    Raises:
        StoreError: it says so, and not in a way that this release reads: it may be of a later one.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
    except (OSError, SafetensorError):
        return None
    if header.get("format") != FORMAT:
        return None
    _require_version(path, header)
    return _made_from(path, header)[0]


def _require_version(path: str | PathLike[str], header: Mapping[str, str]) -> None:
    if header.get("version") != str(VERSION):
        raise StoreError(
            f"{path} has version {header.get('version')} of the Grams format; this release reads {VERSION}. "
            "Use the release that wrote it, or fit again."
        )


def metadata_of(blob: bytes) -> dict[str, str]:
    """The ``__metadata__`` of a safetensors file, whose header is a length (u64) and then JSON."""
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    return dict(header.get("__metadata__", {}))


def _checked_gram(path: str | PathLike[str], name: str, info: LayerInfo, packed: Tensor | None) -> Tensor:
    size = (info.groups, info.d * (info.d + 1) // 2)
    if packed is None or tuple(packed.shape) != size:
        got = "missing" if packed is None else f"of shape {list(packed.shape)}"
        raise StoreError(f"{path}: the Gram of layer {name!r} is {got}, expected {list(size)}. Fit again.")
    gram = _unpack(packed.double(), info.d)
    # A diagonal a little below zero is no damage: requests subtract rows up to a tolerance.
    if not bool(torch.isfinite(gram).all()):
        raise StoreError(f"{path}: the Gram of layer {name!r} is not finite. Fit again.")
    return gram


def _profile(path: str | PathLike[str], tensors: Mapping[str, Tensor]) -> ClassProfile | None:
    if f"{PROFILE}.count" not in tensors:
        return None
    classes = len(tensors[f"{PROFILE}.count"])
    unknown = {key: torch.tensor(float("nan"), dtype=torch.float64) for key in ("temperature", "overlap")}
    unknown["trained"] = counted((), classes)
    # Profiles of earlier releases do not know what the model was trained on, nor how sure it is of itself.
    parts = {k: tensors.get(f"{PROFILE}.{k}", unknown.get(k)) for k in ClassProfile.__dataclass_fields__}
    shapes = {"margin": (classes, LEVELS), "entropy": (classes, LEVELS), "temperature": (), "overlap": ()}
    for key, value in parts.items():
        if value is None or tuple(value.shape) != shapes.get(key, (classes,)):
            raise StoreError(f"{path}: {PROFILE}.{key} is missing or has the wrong shape. Fit again.")
    return ClassProfile(**{key: value for key, value in parts.items() if value is not None})


def _spread(path: str | PathLike[str], tensors: Mapping[str, Tensor]) -> MarginCounts | None:
    """Files of earlier releases have none."""
    counts = tensors.get(SPREAD)
    if counts is None:
        return None
    if counts.dim() != 2 or counts.shape[1] != BINS or counts.dtype != torch.int32:
        raise StoreError(f"{path}: {SPREAD} has the wrong shape or type. Fit again.")
    return MarginCounts(counts.long())


def _pack(gram: Tensor) -> Tensor:
    """[groups, d, d] → the upper triangle, [groups, d (d + 1) / 2]."""
    rows, columns = torch.triu_indices(gram.shape[1], gram.shape[1])
    return gram[:, rows, columns]


def _unpack(packed: Tensor, d: int) -> Tensor:
    rows, columns = torch.triu_indices(d, d)
    gram = packed.new_zeros(packed.shape[0], d, d)
    gram[:, rows, columns] = packed
    gram[:, columns, rows] = packed
    return gram


def digest_of(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    """SHA-256 over the metadata, itself aside, and all tensors."""
    digest = hashlib.sha256(json.dumps(sorted((k, v) for k, v in header.items() if k != "sha256")).encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(bytes_of(tensors[name]))
    return digest.hexdigest()
