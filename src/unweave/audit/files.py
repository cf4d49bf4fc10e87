"""Outputs of models as arrays on disk, made anywhere: an ``.npz``, or a folder of ``.npy`` files with the same names.

| array                                                   | shape                    | holds                         |
|---------------------------------------------------------|--------------------------|-------------------------------|
| forget_labels, held_out_labels, retained_labels         | [n]                      | integers                      |
| unlearned_forget, unlearned_held_out, original_forget … | [n, C] or [models, n, C] | logits                        |
| references_forget, references_held_out                  | [models, n, C]           | logits of reference models    |
| references_out                                          | [models, n]              | true where trained without it |
| earlier_TITLE_labels                                    | [n]                      | of an earlier request         |
| earlier_TITLE_unlearned, earlier_TITLE_original         | [n, C] or [models, n, C] | logits                        |
| class_names                                             | [C]                      | text                          |
| left                                                    | [C]                      | shares of classes that stayed |
| seconds_unlearned, seconds_retrained                    | one number               | what it took to make one      |

Only ``forget_labels`` and ``unlearned_forget`` must be there.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unweave.audit.evidence import GROUPS, Answers, Before, Evidence, Task, Yardstick
from unweave.audit.outputs import Ensemble
from unweave.errors import DataError, StoreError

PARTS = ("forget", "held_out", "retained")
KNOWN = (
    *(f"{part}_labels" for part in PARTS),
    *(f"{group}_{part}" for group in GROUPS for part in PARTS),
    *(f"seconds_{group}" for group in GROUPS),
    "references_forget",
    "references_held_out",
    "references_out",
    "class_names",
    "left",
)
PARTS_OF_EARLIER = ("labels", "unlearned", "original")
EARLIER = re.compile(f"earlier_(.+)_({'|'.join(PARTS_OF_EARLIER)})")


def load_evidence(path: str | PathLike[str], task: Task = "samples", same_original: bool = False) -> Evidence:
    """Read outputs from an ``.npz`` or a folder of ``.npy`` files.

    Raises:
        StoreError: no such file, or not one of numpy's.
        DataError: arrays that are missing, unknown, or do not fit together.
    """
    arrays = _read(Path(path))
    unknown = [name for name in sorted(arrays) if name not in KNOWN and not EARLIER.fullmatch(name)]
    if unknown:
        raise DataError(f"Unknown array {', '.join(unknown)} in {path}. Supported: {', '.join(KNOWN)}.")
    for name in ("forget_labels", "unlearned_forget"):
        if name not in arrays:
            raise DataError(f"{path} has no array {name}. It has: {', '.join(sorted(arrays)) or 'nothing'}.")
    original, unlearned, retrained = (_answers(arrays, group) for group in GROUPS)
    assert unlearned is not None
    names = [str(name) for name in np.atleast_1d(arrays.get("class_names", np.array([], dtype=str)))]
    given = unlearned, original, retrained, _yardstick(arrays)
    left = {c: float(share) for c, share in enumerate(np.atleast_1d(arrays.get("left", [])))}
    return Evidence(*given, task, names, same_original, _earlier(arrays), left)


def save_evidence(path: str | PathLike[str], **arrays: Any) -> None:
    """Write arrays by the names above to an ``.npz``; logits are stored as float32.

    Raises:
        DataError: an unknown name.
        StoreError: the file cannot be written.
    """
    import io

    from unweave.files import write_atomically

    unknown = [name for name in sorted(arrays) if name not in KNOWN and not EARLIER.fullmatch(name)]
    if unknown:
        raise DataError(f"Unknown array {', '.join(unknown)}. Supported: {', '.join(KNOWN)}.")
    table = {name: np.asarray(value) for name, value in arrays.items()}
    compact = {name: a.astype(np.float32) if a.dtype == np.float64 and a.ndim > 1 else a for name, a in table.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **compact)
    write_atomically(path, buffer.getvalue())


def _earlier(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Before]:
    """Earlier requests by their titles."""
    titles = sorted({match[1] for match in map(EARLIER.fullmatch, arrays) if match})
    found = {}
    for title in titles:
        labels, unlearned, original = (arrays.get(f"earlier_{title}_{part}") for part in PARTS_OF_EARLIER)
        if labels is None or unlearned is None:
            raise DataError(f"The earlier request {title} needs earlier_{title}_labels and earlier_{title}_unlearned.")
        groups = [None if a is None else _many(a, labels, f"earlier_{title}") for a in (unlearned, original)]
        assert groups[0] is not None
        found[title] = Before(groups[0], groups[1])
    return found


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if path.is_dir():
            return {file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob("*.npy"))}
        with path.open("rb") as file:  # numpy would leave it open where it is not what it seems
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise StoreError(f"{path} is a single array. Expected an .npz, or a folder of .npy files.")
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise StoreError(f"{path} does not exist.") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path} cannot be read as numpy arrays ({error}). Write it with numpy.savez.") from error


def _answers(arrays: Mapping[str, NDArray[Any]], group: str) -> Answers | None:
    there = {part: _ensemble(arrays, f"{group}_{part}", part) for part in PARTS if f"{group}_{part}" in arrays}
    if not there:
        return None
    if "forget" not in there:
        raise DataError(f"There is {group}_{next(iter(there))}, but no {group}_forget.")
    return Answers(**there, seconds=_seconds(arrays.get(f"seconds_{group}"), group))


def _seconds(value: NDArray[Any] | None, group: str) -> float | None:
    if value is None:
        return None
    if value.size != 1 or not np.issubdtype(value.dtype, np.number) or not 0 <= float(value.item()) < np.inf:
        raise DataError(f"Invalid seconds_{group}: {value}. Expected one number, not below 0.")
    return float(value.item())


def _ensemble(arrays: Mapping[str, NDArray[Any]], name: str, part: str) -> Ensemble:
    labels = arrays.get(f"{part}_labels")
    if labels is None:
        raise DataError(f"The labels are missing: {name} needs {part}_labels.")
    return _many(arrays[name], labels, name)


def _many(logits: NDArray[Any], labels: NDArray[Any], name: str) -> Ensemble:
    return Ensemble.of(logits[None] if logits.ndim == 2 else logits, labels, name)


def _yardstick(arrays: Mapping[str, NDArray[Any]]) -> Yardstick | None:
    names = ("references_forget", "references_held_out")
    there = [name for name in names if name in arrays]
    if not there:
        return None
    if len(there) < len(names):
        raise DataError(f"There is {there[0]}, but not {' and '.join(set(names) - set(there))}.")
    forget, held_out = _ensemble(arrays, names[0], "forget"), _ensemble(arrays, names[1], "held_out")
    out = arrays.get("references_out")
    mask = np.ones(forget.logits.shape[:2], dtype=bool) if out is None else np.asarray(out)
    if not np.isin(mask, (0, 1)).all():
        raise DataError("Invalid references_out: expected true or false for each model and sample.")
    mask = mask.astype(bool)
    return Yardstick(forget, mask, held_out)


def arrays_of(evidence: Evidence) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of evidence by their names on disk: what :func:`save_evidence` takes."""
    for group, answers in evidence.groups():
        for part, answer in answers.parts():
            name = part.replace(" ", "_")
            yield f"{group}_{name}", answer.logits
            if group == "unlearned":
                yield f"{name}_labels", answer.labels
        if answers.seconds is not None:
            yield f"seconds_{group}", np.array(answers.seconds)
    if evidence.references is not None:
        yield "references_forget", evidence.references.forget.logits
        yield "references_held_out", evidence.references.held_out.logits
        yield "references_out", evidence.references.out
    for title, before in evidence.earlier.items():
        yield f"earlier_{title}_labels", before.unlearned.labels
        yield f"earlier_{title}_unlearned", before.unlearned.logits
        if before.original is not None:
            yield f"earlier_{title}_original", before.original.logits
    if evidence.class_names:
        yield "class_names", np.array([str(name) for name in evidence.class_names])
