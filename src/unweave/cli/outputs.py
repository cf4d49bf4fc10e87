"""The files of a request: where they go, what they must not overwrite, and how they appear all at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from unweave.cli.configfile import Values
from unweave.errors import ConfigError, ModelError, StoreError
from unweave.files import sync_folder, write_atomically

Write = Callable[[Path], None]
"""Writes one file to the path it is given."""

FLAGS = {
    "Grams": "--grams",
    "weights": "--out",
    "dropped": "--out",
    "labels": "--out",
    "result": "--result",
    "grams": "--grams-out",
    "audit": "--audit-out",
    "page": "--page",
}
"""The flag that gives an output another place, by the name the output has in messages."""


IN_PLACE = {"weights": "[model] weights", "grams": "[fit] grams"}
"""What an output may replace, if the user insists: the file of its own kind that the request started from."""


@dataclass(frozen=True)
class Places:
    """Where the files of a request go, in the order in which they appear."""

    weights: Path
    dropped: Path
    labels: Path
    result: Path
    grams: Path

    @staticmethod
    def of(values: Values) -> Places:
        """As set, else beside ``out``.

        Raises:
            ConfigError: ``out`` by another name than ``*.safetensors``, by which it is read again.
        """
        out: Path = values.require("forget", "out")
        if out.suffix != ".safetensors":
            raise ConfigError(f"Invalid [forget] out: {out}. Supported: a name that ends in .safetensors.")
        return Places(
            weights=out,
            dropped=out.with_name(f"{out.stem}.dropped.safetensors"),
            labels=out.with_name(f"{out.stem}.labels.json"),
            result=values.get("forget", "result") or out.with_suffix(".json"),
            grams=values.get("forget", "grams_out") or out.with_name(f"{out.stem}.grams.safetensors"),
        )

    def used(self, drop: bool) -> dict[str, Path]:
        """Those that will be written, by name."""
        return {name: path for name, path in vars(self).items() if drop or name not in ("dropped", "labels")}


def check_places(
    outputs: Mapping[str, Path], values: Values, inputs: Mapping[str, Path | None], force: bool, once: bool = False
) -> None:
    """Refuse places that cannot be written or are taken, before hours are spent.

    Args:
        outputs: by name, one of ``FLAGS``.
        values: the settings; their file, the weights and the data they name are inputs of every command.
        inputs: what else the command reads, by what the user calls it.
        force: overwrite what is there, but of what the command reads only files of the same kind (``IN_PLACE``): Grams
            cannot be made again without the data.
        once: refuse, without ``force``, whatever is there already.

    Raises:
        ConfigError: two outputs in one place, an output in the place of an input or of something that is there already;
            a folder, or a place in none.
        StoreError: no permission to write there.
    """
    seen: dict[Path, str] = {}
    for name, path in outputs.items():
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise ConfigError(f"The {other} and the {name} would both be written to {path}. Choose two places.")
    data = {f"[data] {key}": values.get("data", key) for key in ("train", "val", "forget", "test")}
    never = {"the settings": values.file, "[model] weights": values.get("model", "weights"), **data, **inputs}
    for name, path in outputs.items():
        own = IN_PLACE.get(name) if force else None
        _require_other(name, path, {what: other for what, other in never.items() if what != own})
        if once and not force:
            _require_free(name, path)
        _require_writable(name, path)


def _require_other(name: str, path: Path, taken: Mapping[str, Path | str | None]) -> None:
    read = [what for what, other in taken.items() if isinstance(other, Path) and other.resolve() == path.resolve()]
    if read:
        helps = read == [IN_PLACE.get(name)]
        raise ConfigError(
            f"The {name} would overwrite {read[0]}, {path}, which this command reads. Choose another place with "
            f"{FLAGS[name]}{', or pass --force.' if helps else '; --force does not change that.'}"
        )


def _require_free(name: str, path: Path) -> None:
    """What a command wrote before is the only copy of a request that was carried out: it is not lost by a repeat."""
    if path.is_file():
        request = name in Places.__dataclass_fields__
        onwards = " (to go on from an earlier request, name its files with --weights and --grams)" if request else ""
        raise ConfigError(
            f"The {name} would overwrite {path}, which is there already. Choose another place with {FLAGS[name]}"
            f"{onwards}, or pass --force."
        )


def _require_writable(name: str, path: Path) -> None:
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"Cannot write the {name} to {path}: it is a folder. Name a file.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"Cannot write the {name} to {path}: it is no ordinary file. Name another.")
    if not folder.is_dir():
        raise ConfigError(f"Cannot write the {name} to {path}: there is no folder {folder}. Make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"Cannot write the {name} to {path}: no permission in {folder}. Choose another place.")


def weights_bytes(state: Mapping[str, Tensor]) -> bytes:
    """A state dict as safetensors, which stores every tensor by itself: tied ones are written out under each name.

    Raises:
        ModelError: a state dict that holds something else than tensors.
    """
    tensors: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ModelError(f"{name!r} of the model's state is a {type(value).__name__}. Supported: tensors.")
        tensor = value.detach().cpu().contiguous()
        shared = tensor.untyped_storage().data_ptr() in storages
        tensors[name] = tensor.clone() if shared else tensor
        storages.add(tensors[name].untyped_storage().data_ptr())
    return safetensors_bytes(tensors, metadata={"format": "pt"})


def write_weights(state: Mapping[str, Tensor]) -> Write:
    """Writes a state dict."""
    return lambda path: write_atomically(path, weights_bytes(state))


def write_text(text: str) -> Write:
    """Writes a text."""
    return lambda path: write_atomically(path, text.encode())


class Staged:
    """Files written in full under temporary names beside their targets, to be renamed together.

    A request is finished when its Grams are in place: they carry the fingerprint of the new weights. They are renamed
    last, so whatever a crash leaves behind is one of two things:

    - before the first rename: everything as it was, and hidden files that nothing reads;
    - between renames: new weights, but old Grams or none. Those Grams are of another fingerprint, so the next request
      refuses the pair instead of taking it for a finished one; running the command again repairs it.

    Grams first would be worse: samples would be on record as forgotten while the weights that still know them are in
    place.
    """

    def __init__(self) -> None:
        self._files: list[tuple[Path, Path]] = []

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *exc: object) -> None:
        for temporary, _ in self._files:
            temporary.unlink(missing_ok=True)

    def add(self, target: Path, write: Write) -> None:
        """Write one file under a temporary name; StoreError (from ``write``) leaves every target as it was."""
        temporary = target.with_name(f".{target.name}.{os.getpid()}.staged")
        self._files.append((temporary, target))
        write(temporary)

    def place(self) -> list[Path]:
        """Rename all files to their targets, in the order they were added; returns the targets.

        Raises:
            StoreError: a rename failed; the message says which files are in place by then.
        """
        placed: list[Path] = []
        for temporary, target in self._files:
            try:
                os.replace(temporary, target)
            except OSError as error:
                done = f"already in place: {', '.join(map(str, placed))}" if placed else "nothing was changed"
                raise StoreError(f"Cannot write {target}: {error.strerror} ({done}). Run the command again.") from error
            sync_folder(target.parent)
            placed.append(target)
        return placed


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C for the moment it takes to rename and report: "nothing was changed" would no longer be true."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
