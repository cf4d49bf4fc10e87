"""From a setting of ``[data]`` to its samples: which kind of source it names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from unweave.cli.arrays import npz_source, pt_source
from unweave.cli.configfile import Values
from unweave.cli.images import Preprocessing, folder_names, image_source
from unweave.cli.imports import call
from unweave.cli.sources import DatasetSource, Source, StreamSource, TensorSource
from unweave.errors import ConfigError, DataError

KINDS = "a folder of images per class, a .npz file, a .pt file, or package.module:function"


def open_source(values: Values, key: str) -> Source:
    """The samples of ``[data] train``, ``val`` or ``forget``.

    Raises:
        ConfigError: the setting is not there, names nothing that is there or nothing of a known kind, its function
            fails, or preprocessing that does not go with it.
        DataError: nothing of use in it.
    """
    setting = values.require("data", key)
    batch_size = values.get("data", "batch_size")
    if batch_size < 1:
        raise ConfigError(f"Invalid [data] batch_size: {batch_size}. Supported: an integer from 1.")
    what = f"[data] {key}"
    if isinstance(setting, str):
        return _from_function(what, setting, call(setting, what), batch_size)
    preprocessing = Preprocessing(*(values.get("data", name) for name in ("resize", "mean", "std")))
    if setting.is_dir():
        return image_source(what, setting, batch_size, preprocessing, _class_names(values))
    if not setting.exists():
        raise ConfigError(f"{what}: {setting} does not exist. Supported: {KINDS}.")
    if setting.suffix == ".npz":
        return npz_source(what, setting, batch_size, preprocessing)
    if setting.suffix in (".pt", ".pth"):
        return pt_source(what, setting, batch_size, preprocessing)
    raise ConfigError(f"{what}: {setting} is of an unknown kind. Supported: {KINDS}.")


def _class_names(values: Values) -> Sequence[str] | None:
    """The classes of image folders: as set, else those of the training folder while it is there.

    A folder of samples to forget often has only some of the classes; numbering its own sub-folders would give them
    the labels of others.
    """
    names: Sequence[str] | None = values.get("data", "class_names")
    train = values.get("data", "train")
    if names is None and isinstance(train, Path) and train.is_dir():
        return folder_names(train)
    return names


def _from_function(what: str, setting: str, made: Any, batch_size: int) -> Source:
    """What a user's function returned; it is used as it is, without preprocessing."""
    if isinstance(made, (tuple, list)) and len(made) == 2 and all(isinstance(m, (Tensor, np.ndarray)) for m in made):
        return TensorSource(what, torch.as_tensor(made[0]), torch.as_tensor(made[1]), batch_size)
    if isinstance(made, DataLoader) and _is_indexed(made.dataset):
        size = made.batch_size or batch_size
        return DatasetSource(what, made.dataset, size, collate=made.collate_fn, whole=made)
    if isinstance(made, IterableDataset):
        made = DataLoader(made, batch_size)
    elif _is_indexed(made) and isinstance(made, Dataset):
        return DatasetSource(what, made, batch_size)
    if not isinstance(made, Iterable):
        raise DataError(
            f"{what}: {setting!r} returned a {type(made).__name__}. Supported: a Dataset of (input, label), a loader "
            "of (inputs, labels), or a pair of tensors."
        )
    return StreamSource(what, made)


def _is_indexed(dataset: Any) -> bool:
    return not isinstance(dataset, IterableDataset) and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
