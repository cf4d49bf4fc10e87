"""Reading files of tensors without ever running what is in them."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors

from unweave.errors import StoreError


def read_tensors(path: Path, remedy: str) -> Any:
    """What a ``.safetensors`` file or a file of ``torch.save`` holds, on the CPU.

    Raises:
        StoreError: the file cannot be read, is damaged, or holds pickled objects other than tensors, which could run
            code; there is no way to load it all the same.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; an error from here on is one of its content
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror}. {remedy}") from error
    with file:
        try:
            return parse_safetensors(file.read()) if path.suffix == ".safetensors" else _unpickled(file)
        except pickle.UnpicklingError as error:
            raise StoreError(
                f"{path} was not loaded: it is no file of tensors, or holds other Python objects besides, which could "
                f"run code. {remedy}"
            ) from error
        except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise StoreError(f"{path} is damaged or not a file of tensors ({reason}). {remedy}") from error


def _unpickled(file: BinaryIO) -> Any:
    with warnings.catch_warnings():  # what torch has to say about odd pickles is in its error
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)
