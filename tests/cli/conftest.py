"""A tiny project on disk: a network, its weights, and its data as .npz and as a folder of images."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from toy_project import CLASSES, NET, POISONED, TOML, Cli, Outcome, Toy, build

from unweave.cli.main import main


def _draw(count: int, centers: torch.Tensor, generator: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = torch.arange(count) % 4
    noise = 0.2 * torch.randn(count, 8, 8, 3, generator=generator)
    pixels = (0.5 + 0.05 * centers[labels] + noise).clamp(0, 1)
    return (pixels * 255).round().to(torch.uint8).numpy(), labels.numpy()


@pytest.fixture(scope="session")
def toy() -> Toy:
    """Trained in a tenth of a second: about 0 % error on the training set, 10 % on the validation set."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        centers = torch.randn(4, 8, 8, 3, generator=generator)
        (x, y), (val_x, val_y) = _draw(240, centers, generator), _draw(120, centers, generator)
        y[:POISONED] = (y[:POISONED] + 1) % 4
        net = build()
        inputs, labels = torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y)
        optimizer = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
    return Toy(x, y, val_x, val_y, {name: value.detach() for name, value in net.state_dict().items()})


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background and inherited that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, with its own modules forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    path = list(sys.path)
    yield tmp_path
    assert sys.path == path, "the command left something on sys.path"
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def project(here: Path, toy: Toy) -> Path:
    """The current directory with a network, weights, data and settings."""
    (here / "toy_net.py").write_text(NET)
    (here / "unweave.toml").write_text(TOML)
    save_file(toy.weights, here / "model.safetensors")
    np.savez(here / "train.npz", x=toy.x, y=toy.y)
    np.savez(here / "val.npz", x=toy.val_x, y=toy.val_y)
    (here / "ids.txt").write_text("\n".join(map(str, range(20, 44))))
    return here


@pytest.fixture
def fitted(project: Path, cli: Cli) -> Path:
    """The same with Grams."""
    assert cli("fit").code == 0
    return project


@pytest.fixture
def images(project: Path, toy: Toy) -> Path:
    """The same with the data as folders of images, ``train_images`` and ``val_images``."""
    for folder, x, y in (("train_images", toy.x, toy.y), ("val_images", toy.val_x, toy.val_y)):
        for name in CLASSES:
            (project / folder / name).mkdir(parents=True)
        for i, (pixels, label) in enumerate(zip(x, y, strict=True)):
            Image.fromarray(pixels).save(project / folder / CLASSES[label] / f"{i:03}.png")
    return project
