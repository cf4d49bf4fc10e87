"""A folder of images per class: class = sub-folder, decoded with Pillow to RGB, float32 in [0, 1], [3, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from unweave.cli.configfile import nearest
from unweave.cli.sources import DatasetSource
from unweave.errors import ConfigError, DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
MEANT = "Supported: one sub-folder per class with images in it."


@dataclass(frozen=True)
class Preprocessing:
    """What is done to images from files after scaling to [0, 1].

    Raises:
        ConfigError: a size below 1, or a divisor of 0.
    """

    resize: Sequence[int] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.resize is not None and min(self.resize) < 1:
            raise ConfigError(f"Invalid [data] resize: {self.resize}. Supported: [height, width] from 1.")
        if self.std is not None and 0 in self.std:
            raise ConfigError(f"Invalid [data] std: {self.std}. Supported: numbers other than 0.")

    def normalised(self, images: Tensor) -> Tensor:
        """Images [..., C, H, W] less the mean, over the standard deviation, per channel."""
        mean, std = self._column("mean", self.mean, images), self._column("std", self.std, images)
        images = images if mean is None else images - mean
        return images if std is None else images / std

    def _column(self, name: str, numbers: Sequence[float] | None, images: Tensor) -> Tensor | None:
        if numbers is None:
            return None
        channels = images.shape[-3]
        if len(numbers) not in (1, channels):
            raise ConfigError(
                f"Invalid [data] {name}: {len(numbers)} numbers for images of {channels} channels. Supported: one for "
                "each channel, or a single one."
            )
        return torch.tensor(numbers, dtype=images.dtype)[:, None, None]


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """The images under a folder, in the order of their class and then of their name."""

    def __init__(self, root: Path, files: list[tuple[str, int]], preprocessing: Preprocessing) -> None:
        self.root, self.files, self.preprocessing = root, files, preprocessing

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        name, label = self.files[index]
        return self.preprocessing.normalised(_decode(self.root / name, self.preprocessing.resize)), label


def _decode(path: Path, resize: Sequence[int] | None) -> Tensor:
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"Cannot decode the image {path}: {error}. Replace or remove it.") from error
    if resize is not None:
        image = image.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def _collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    shapes = {tuple(image.shape[1:]) for image, _ in samples}
    if len(shapes) > 1:
        sizes = " and ".join(f"{height} x {width}" for height, width in sorted(shapes)[:2])
        raise DataError(f"The images differ in size: {sizes} (height x width). Set [data] resize, or --resize.")
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def image_source(
    what: str, root: Path, batch_size: int, preprocessing: Preprocessing, class_names: Sequence[str] | None
) -> DatasetSource:
    """The images under a folder as a source.

    Raises:
        DataError: no sub-folder, no image, or a sub-folder that is not among the names of the classes.
    """
    folders = folder_names(root)
    classes = list(class_names or folders)
    if not classes or not folders:
        raise DataError(f"{what}: {root} has no sub-folders. {MEANT}")
    unknown = [name for name in folders if name not in classes]
    if unknown:
        raise DataError(
            f"{what}: {root} has the sub-folder {unknown[0]!r}, no known class.{nearest(unknown[0], classes)}"
        )
    files = [(name, classes.index(folder)) for folder in folders for name in _images(root, folder)]
    files.sort(key=lambda file: file[1])
    if not files:
        raise DataError(f"{what}: {root} has no images in its sub-folders. {MEANT} Files: {', '.join(SUFFIXES)}.")
    return DatasetSource(
        what,
        ImageFolder(root, files, preprocessing),
        batch_size,
        collate=_collate,
        labels=[label for _, label in files],
        names=[name for name, _ in files],
        class_names=classes,
    )


def folder_names(root: Path) -> list[str]:
    """The sub-folders of a folder, sorted; hidden ones are not classes."""
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(root: Path, folder: str) -> list[str]:
    found = (path for path in (root / folder).rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path.relative_to(root).as_posix() for path in found)
