"""Reference models for audits to come: two networks trained on complementary halves of the training set.

For every training sample one of the two was trained without it (it is OUT), now and for every later request. Only
their outputs are kept: logits float32 [R, n, C] on all n training samples, a mask OUT [R, n], the labels [n], and the
logits on held-out samples [R, m, C]. With R = 4, 6, … there are R / 2 independent splits and R / 2 OUT references.

The file says how networks answer about each training sample, so it is personal data like the training set itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from unweave.audit.outputs import Ensemble, Ints, Outputs, collect
from unweave.errors import ConfigError, DataError, StoreError
from unweave.files import write_atomically

FORMAT = "unweave.references"
VERSION = 1

Train = Callable[[Any], nn.Module]
"""From a ``torch.utils.data.Subset`` of the training set to a model trained on it."""


class Sized(Protocol):
    """A map-style dataset: ``len(samples)``, and ``samples[i]`` is a pair (input, label)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class References:
    """Outputs of reference models; see the module's docstring for the shapes."""

    logits: NDArray[np.float32]
    out: NDArray[np.bool_]
    labels: Ints
    held_out: NDArray[np.float32] | None = None
    held_out_labels: Ints | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        """How many reference models."""
        return len(self.logits)

    def of(self, indices: ArrayLike) -> tuple[Ensemble, NDArray[np.bool_]]:
        """The references' outputs on some training samples, and which model was trained without which, [R, k].

        Raises:
            DataError: a position outside the training set, or none.
        """
        chosen = np.asarray(indices)
        count = len(self.labels)
        if chosen.ndim != 1 or not len(chosen) or not np.issubdtype(chosen.dtype, np.integer):
            raise DataError(f"Invalid indices: {chosen.dtype} of shape {list(chosen.shape)}. Expected positions [k].")
        if chosen.min() < 0 or chosen.max() >= count:
            raise DataError(f"Invalid indices: {chosen.min()} to {chosen.max()} with {count} training samples.")
        ensemble = Ensemble.of(self.logits[:, chosen], self.labels[chosen], "references")
        return ensemble, self.out[:, chosen]

    def on_held_out(self) -> Ensemble | None:
        """The references' outputs on the held-out samples, which none was trained on; None where there are none."""
        if self.held_out is None or self.held_out_labels is None:
            return None
        return Ensemble.of(self.held_out, self.held_out_labels, "references on held out")

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a safetensors file, atomically.

        Raises:
            StoreError: the file cannot be written; nothing changed then.
        """
        arrays = {key: np.ascontiguousarray(value) for key, value in vars(self).items() if value is not None}
        header = {"format": FORMAT, "version": str(VERSION)}
        header["sha256"] = _digest(arrays, header)
        write_atomically(path, safetensors_bytes(arrays, metadata=header))

    @staticmethod
    def load(path: str | PathLike[str]) -> References:
        """Read what :meth:`save` wrote, and check it.

        Raises:
            StoreError: the file is missing, truncated, altered, of another kind, or of another version.
        """
        header, arrays = _read(path)
        if header.get("format") != FORMAT:
            raise StoreError(f"{path} is a safetensors file of something else. Pass what References.save() wrote.")
        if header.get("version") != str(VERSION):
            raise StoreError(f"{path} has version {header.get('version')}; this release reads {VERSION}. Train again.")
        if _digest(arrays, header) != header.get("sha256"):
            raise StoreError(f"{path} was altered: its SHA-256 is not the one recorded in it. Restore it.")
        try:
            return References(**arrays)
        except (TypeError, DataError) as error:
            raise StoreError(f"{path} is damaged: {error}. Restore it or train again.") from error


def train_references(
    train: Train,
    samples: Sized,
    *,
    held_out: Sized | None = None,
    plain: Sized | None = None,
    labels: ArrayLike | None = None,
    count: int = 2,
    batch_size: int = 256,
    seed: int = 0,
) -> References:
    """Train reference models, keep their outputs and drop them.

    Args:
        train: trains one model on a ``Subset`` of ``samples``, the way the model to be audited is trained.
        samples: the training set; ``samples[i]`` is (input, label).
        held_out: samples that no model is trained on.
        plain: the same samples in the same order without augmentation, if ``samples`` augments.
        labels: of the training set, to split each class in halves; None splits at random.
        count: of models, an even number: two for each split.
        batch_size: to read outputs.
        seed: of the splits.

    Raises:
        ConfigError: an odd count. DataError: fewer than two samples, or labels that do not fit.
    """
    if count < 2 or count % 2:
        raise ConfigError(f"Invalid count: {count}. Supported: 2, 4, … models, two for each split.")
    out = split_in_halves(len(samples), labels=labels, count=count, seed=seed)
    shown = samples if plain is None else plain
    if len(shown) != len(samples):
        raise DataError(f"plain has {len(shown)} samples and samples has {len(samples)}. Both must be the same ones.")
    inside: list[Outputs] = []
    outside: list[Outputs] = []
    for mask in out:
        model = train(Subset(_dataset(samples), np.flatnonzero(~mask).tolist()))
        inside.append(collect(model, DataLoader(_dataset(shown), batch_size), "references"))
        if held_out is not None:
            outside.append(collect(model, DataLoader(_dataset(held_out), batch_size), "references on held out"))
    if labels is not None and (np.asarray(labels) != inside[0].labels).any():
        raise DataError("The labels given are not those of the samples. Give labels in the order of the samples.")
    return References(
        np.stack([outputs.logits for outputs in inside]).astype(np.float32),
        out,
        inside[0].labels,
        np.stack([outputs.logits for outputs in outside]).astype(np.float32) if outside else None,
        outside[0].labels if outside else None,
    )


def split_in_halves(
    samples: int, *, labels: ArrayLike | None = None, count: int = 2, seed: int = 0
) -> NDArray[np.bool_]:
    """Which model is trained without which sample, [count, samples]: model 2i + 1 without what 2i is trained on.

    Raises:
        DataError: fewer than two samples, or labels that do not fit.
    """
    strata = np.zeros(samples, dtype=np.int64) if labels is None else np.asarray(labels)
    if samples < 2 or strata.shape != (samples,):
        raise DataError(
            f"Cannot halve {samples} samples with labels {list(strata.shape)}. Give two or more, one label each."
        )
    rng = np.random.default_rng(seed)
    out = np.zeros((count, samples), dtype=bool)
    for first in range(0, count, 2):
        order = rng.permutation(samples)
        order = order[np.argsort(strata[order], kind="stable")]
        out[first, order[::2]] = True
        out[first + 1] = ~out[first]
    return out


def _dataset(samples: Sized) -> Dataset[Any]:
    return samples  # type: ignore[return-value]  # torch asks for no more than len and indexing


def _check(references: References) -> None:
    logits, out, labels = references.logits, references.out, references.labels
    if logits.ndim != 3 or out.shape != logits.shape[:2] or out.dtype != np.bool_ or labels.shape != out.shape[1:]:
        shapes = ", ".join(str(list(x.shape)) for x in (logits, out, labels))
        raise DataError(f"Invalid references: shapes {shapes}. Expected logits [R, n, C], out [R, n] and labels [n]")
    Ensemble.of(logits, labels, "references")
    if not out.any(0).all():
        raise DataError("Invalid references: a sample that every model was trained on")
    if (references.held_out is None) != (references.held_out_labels is None):
        raise DataError("Invalid references: held-out logits and held-out labels go together")
    if references.held_out is not None:
        Ensemble.of(references.held_out, references.held_out_labels, "references on held out")  # type: ignore[arg-type]
        if references.held_out.shape[::2] != logits.shape[::2]:
            raise DataError("Invalid references: held-out logits of other models or classes than the rest")


def _read(path: str | PathLike[str]) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise StoreError(
            f"Cannot read {path}: {error.strerror or error}. Pass what References.save() wrote."
        ) from error
    except SafetensorError as error:
        raise StoreError(f"{path} is damaged or not a safetensors file ({error}). Restore it.") from error


def _digest(arrays: Mapping[str, NDArray[Any]], header: Mapping[str, str]) -> str:
    """SHA-256 over the metadata, itself aside, and all arrays."""
    digest = hashlib.sha256(json.dumps(sorted((k, v) for k, v in header.items() if k != "sha256")).encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}{arrays[name].dtype}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
