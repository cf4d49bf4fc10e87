"""Samples from ``.npz`` and ``.pt`` files, brought into the form a network expects.

uint8 inputs are pixels: they become float32 in [0, 1]. Arrays [N, H, W, C] with C of 1 or 3 become [N, C, H, W].
float64 inputs become float32, the type of nearly every network.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unweave.cli.images import Preprocessing
from unweave.cli.sources import TensorSource
from unweave.cli.tensorfile import read_tensors
from unweave.errors import ConfigError, DataError

PAIRS = (("x", "y"), ("inputs", "labels"))
MEANT = "Supported: x and y, or inputs and labels."


def npz_source(what: str, path: Path, batch_size: int, preprocessing: Preprocessing) -> TensorSource:
    """The arrays ``x`` and ``y`` of an ``.npz`` file.

    Raises:
        DataError: not such a file, pickled objects in it (they are never loaded), or no such arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for pair in PAIRS for name in pair if name in file.files}
            there = list(file.files)
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{what}: {path} cannot be read as .npz of numbers ({error}). Write it with numpy.savez."
        ) from error
    return _source(what, path, _pair(what, path, arrays, there), batch_size, preprocessing)


def pt_source(what: str, path: Path, batch_size: int, preprocessing: Preprocessing) -> TensorSource:
    """The tensors of a ``.pt`` file: a dict with ``x`` and ``y``, or a tuple of the two.

    Raises:
        StoreError: the file is damaged or holds more than tensors.
        DataError: no such tensors.
    """
    content = read_tensors(path, "Write it with torch.save((x, y), path).")
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = {"x": content[0], "y": content[1]}
    if not isinstance(content, Mapping):
        raise DataError(f"{what}: {path} holds a {type(content).__name__}. {MEANT} As a dict, or as a tuple of two.")
    return _source(what, path, _pair(what, path, content, list(content)), batch_size, preprocessing)


def _pair(what: str, path: Path, arrays: Mapping[str, Any], there: list[Any]) -> tuple[Tensor, Tensor]:
    for x, y in PAIRS:
        if isinstance(arrays.get(x), Tensor) and isinstance(arrays.get(y), Tensor):
            return arrays[x], arrays[y]
    raise DataError(f"{what}: {path} has the arrays {', '.join(map(str, there)) or 'none'}. {MEANT}")


def _source(
    what: str, path: Path, pair: tuple[Tensor, Tensor], batch_size: int, preprocessing: Preprocessing
) -> TensorSource:
    inputs, labels = pair
    if preprocessing.resize is not None:
        raise ConfigError(f"{what}: [data] resize is for image folders; {path} is used at its own size. Remove it.")
    inputs = channels_first(inputs)
    if inputs.dtype == torch.uint8:
        inputs = inputs.float() / 255
    elif inputs.dtype == torch.float64:
        inputs = inputs.float()
    if preprocessing.mean is not None or preprocessing.std is not None:
        if inputs.dim() != 4 or not inputs.is_floating_point():
            shape = list(inputs.shape)
            raise ConfigError(
                f"{what}: [data] mean and std are for images; {path} holds {inputs.dtype} {shape}. Remove them."
            )
        inputs = preprocessing.normalised(inputs)
    return TensorSource(what, inputs, labels, batch_size)


def channels_first(inputs: Tensor) -> Tensor:
    """[N, H, W, C] → [N, C, H, W] where C is 1 or 3 and the second axis is neither."""
    if inputs.dim() == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3):
        return inputs.permute(0, 3, 1, 2).contiguous()
    return inputs
