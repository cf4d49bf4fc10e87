"""[data]: every kind of source, and what can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toy_project import CLASSES, Cli, Toy, build

import unweave
from unweave.cli.arrays import channels_first
from unweave.cli.images import Preprocessing, image_source

FUNCTIONS = """
import numpy as np, torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

def pair():
    file = np.load("train.npz")
    return torch.from_numpy(file["x"]).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(file["y"])

def arrays(): return tuple(t.numpy() for t in pair())
def dataset(): return TensorDataset(*pair())
def loader(): return DataLoader(dataset(), 50)
def shuffled(): return DataLoader(dataset(), 50, shuffle=True)
def batches():
    x, y = pair()
    return list(zip(x.split(70), y.split(70)))
def generator(): yield from batches()

class Stream(IterableDataset):
    def __iter__(self):
        x, y = pair()
        yield from zip(x, y)

def stream(): return Stream()
def stream_loader(): return DataLoader(Stream(), 33)
class Noisy(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.01 * torch.randn(()), y

def noisy(): return Noisy(*pair())
def number(): return 3
def words(): return "text"
def failing(): raise ValueError("no such table")
def empty(): return TensorDataset(torch.zeros(0, 3), torch.zeros(0))
"""


@pytest.fixture
def expected(toy: Toy) -> unweave.LayerGrams:
    """The Grams of the toy training set, from the library."""
    net = build()
    net.load_state_dict(toy.weights)
    x = torch.from_numpy(toy.x).permute(0, 3, 1, 2).float() / 255
    return unweave.fit(net, [(x, torch.from_numpy(toy.y))])


def require_equal(path: Path, expected: unweave.LayerGrams) -> None:
    grams = unweave.LayerGrams.load(path)
    assert grams.samples == expected.samples
    for name in expected:
        torch.testing.assert_close(grams[name], expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    ["pair", "arrays", "dataset", "loader", "shuffled", "batches", "generator", "stream", "stream_loader"],
)
def test_functions(project: Path, cli: Cli, toy: Toy, expected: unweave.LayerGrams, function: str) -> None:
    (project / "own_data.py").write_text(FUNCTIONS)
    fit = cli("fit", "--train", f"own_data:{function}")
    assert fit.code == 0, fit.err
    require_equal(project / "grams.safetensors", expected)
    done = cli("forget", "--ids", "ids.txt", "--train", f"own_data:{function}", "--json")
    assert done.code == 0, done.err
    weights = (project / "forgotten.safetensors").read_bytes()
    assert cli("forget", "--ids", "ids.txt", "--force").code == 0
    assert (project / "forgotten.safetensors").read_bytes() == weights, "the same samples as in train.npz"
    classes = cli("forget", "--classes", "1", "--train", f"own_data:{function}", "--json", "--force")
    assert classes.record["samples"] == int((toy.y == 1).sum())


@pytest.mark.parametrize(
    "function, code, words",
    [
        ("number", 1, ["returned a int", "Dataset of (input, label)"]),
        ("failing", 2, ["failed with ValueError: no such table"]),
        ("missing", 2, ["no 'missing'"]),
        ("empty", 1, ["empty"]),
        ("words", 1, ["batch 0", "a pair (inputs, labels)"]),
    ],
)
def test_functions_that_return_no_data(project: Path, cli: Cli, function: str, code: int, words: list[str]) -> None:
    (project / "own_data.py").write_text(FUNCTIONS)
    failed = cli("fit", "--train", f"own_data:{function}")
    assert failed.code == code
    for word in words:
        assert word in failed.err


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_random_augmentation_is_one_line_on_stderr(project: Path, cli: Cli) -> None:
    (project / "own_data.py").write_text(FUNCTIONS)
    fit = cli("fit", "--train", "own_data:noisy", "--json")
    assert fit.code == 0
    assert fit.record["ok"]
    (line,) = fit.err.splitlines()
    assert line.startswith("unweave: warning: the training set gives sample 0 otherwise each time it is read")


def test_kinds_of_arrays(project: Path, cli: Cli, toy: Toy, expected: unweave.LayerGrams) -> None:
    """uint8 or float64, channels last or first, .npz or .pt: the same Grams."""
    x, y = torch.from_numpy(toy.x), torch.from_numpy(toy.y)
    np.savez(project / "a.npz", x=toy.x.transpose(0, 3, 1, 2), y=toy.y.astype(np.uint8))
    np.savez(project / "b.npz", inputs=toy.x.astype(np.float64) / 255, labels=toy.y)
    torch.save((x, y), project / "c.pt")
    torch.save({"inputs": x.float() / 255, "labels": y}, project / "d.pth")
    for name in ("a.npz", "b.npz", "c.pt", "d.pth"):
        fit = cli("fit", "--train", name)
        assert fit.code == 0, fit.err
        require_equal(project / "grams.safetensors", expected)


def test_channels_first() -> None:
    for shape, result in (
        ((2, 8, 9, 3), [2, 3, 8, 9]),
        ((2, 8, 9, 1), [2, 1, 8, 9]),
        ((2, 3, 8, 9), [2, 3, 8, 9]),
        ((2, 1, 8, 3), [2, 1, 8, 3]),
        ((2, 8, 9, 4), [2, 8, 9, 4]),
        ((2, 8, 3), [2, 8, 3]),
    ):
        assert list(channels_first(torch.zeros(shape)).shape) == result


def test_an_image_folder_is_the_same_data(images: Path, cli: Cli, expected: unweave.LayerGrams) -> None:
    fit = cli("fit", "--train", "train_images", "--val", "val_images")
    assert fit.code == 0, fit.err
    require_equal(images / "grams.safetensors", expected)


def test_positions_in_a_folder_go_by_class_and_then_by_name(images: Path) -> None:
    names = ["dog", "cat", "bee", "ant"]
    source = image_source("[data] train", images / "train_images", 16, Preprocessing(), names)
    paths = [p.relative_to(images / "train_images") for p in (images / "train_images").rglob("*.png")]
    in_order = sorted(paths, key=lambda p: (names.index(p.parts[0]), p.name))
    assert source.names == [p.as_posix() for p in in_order]
    assert source.labels().tolist() == [names.index(p.parts[0]) for p in in_order]
    with Image.open(images / "train_images" / in_order[100]) as image:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    ((inputs, labels),) = source.only([100])
    assert torch.equal(inputs[0], pixels)
    assert labels.tolist() == [names.index(in_order[100].parts[0])]


def test_file_names_as_ids(images: Path, cli: Cli, toy: Toy) -> None:
    data = ("--train", "train_images", "--val", "val_images")
    assert cli("fit", *data).code == 0
    names = [f"{CLASSES[toy.y[i]]}/{i:03}.png" for i in range(20, 44)]
    (images / "names.txt").write_text("\n".join(names))
    done = cli("forget", "--ids", "names.txt", *data)
    assert done.code == 0, done.err
    by_name = unweave.LayerGrams.load(images / "forgotten.grams.safetensors")
    assert cli("forget", "--ids", "ids.txt", "--force").code == 0, "the same samples by position in train.npz"
    by_position = unweave.LayerGrams.load(images / "forgotten.grams.safetensors")
    assert by_name.origin.forgotten == by_position.origin.forgotten


def test_a_forget_folder_with_some_of_the_classes(images: Path, cli: Cli, toy: Toy) -> None:
    """Its only sub-folder is "cat": label 2 as in the training folder, not 0."""
    data = ("--train", "train_images", "--val", "val_images")
    assert cli("fit", *data).code == 0
    (images / "gone").mkdir()
    (images / "train_images" / "cat").rename(images / "gone" / "cat")
    (images / "train_images" / "cat").mkdir()
    done = cli("forget", "--classes", "2", "--forget", "gone", *data, "--json")
    assert done.code == 0, done.err
    assert done.record["samples"] == int((toy.y == 2).sum())
    named = ("--train=", "--val=", "--class-names", ",".join(CLASSES))
    assert cli("forget", "--classes", "cat", "--forget", "gone", *named, "--json", "--force").record["classes"] == [2]
    (images / "gone" / "cow").mkdir()
    unknown = cli("forget", "--classes", "2", "--forget", "gone", *data, "--force")
    assert unknown.code == 1
    assert "'cow'" in unknown.err


def test_resize_mean_and_std(images: Path, cli: Cli) -> None:
    (images / "small_net.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 6, 4))\n"
    )
    flags = ("--factory", "small_net:build", "--weights=", "--val=", "--train", "train_images")
    assert cli("fit", *flags, "--resize", "4,6").code == 0
    plain = unweave.LayerGrams.load(images / "grams.safetensors")["1"]
    shifted = cli("fit", *flags, "--resize", "4x6", "--mean", "0.5", "--std", "0.25,0.25,0.5")
    assert shifted.code == 0, shifted.err
    grams = unweave.LayerGrams.load(images / "grams.safetensors")["1"]
    rows = _resized(images / "train_images", (6, 4))
    torch.testing.assert_close(plain, rows.T @ rows, rtol=1e-5, atol=1e-5)
    normal = (rows.reshape(-1, 3, 24) - 0.5) / torch.tensor([0.25, 0.25, 0.5])[:, None]
    normal = normal.reshape(-1, 72)
    torch.testing.assert_close(grams, normal.T @ normal, rtol=1e-4, atol=1e-4)


def _resized(root: Path, size: tuple[int, int]) -> torch.Tensor:
    rows = []
    for path in sorted(root.rglob("*.png")):
        with Image.open(path) as image:
            pixels = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
        rows.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1).reshape(-1).double() / 255)
    return torch.stack(rows)


@pytest.mark.parametrize(
    "code, flags, words",
    [
        (2, ["--train", "nowhere.npz"], ["nowhere.npz does not exist", "a folder of images per class"]),
        (2, ["--train", "nowhere"], ["does not exist"]),
        (2, ["--train", "toy_net.py"], ["unknown kind"]),
        (2, ["--train="], ["[data] train is not set", "--train"]),
        (2, ["--train", "train_images", "--mean", "1,2"], ["mean: 2 numbers for images of 3 channels"]),
        (2, ["--train", "train_images", "--std", "0"], ["Invalid [data] std"]),
        (2, ["--train", "train_images", "--resize", "0,8"], ["Invalid [data] resize"]),
        (2, ["--resize", "8,8"], ["resize is for image folders"]),
        (2, ["--train", "flat.npz", "--mean", "1"], ["mean and std are for images"]),
        (1, ["--train", "names.npz"], ["arrays a, b", "x and y, or inputs and labels"]),
        (1, ["--train", "objects.npz"], ["objects.npz cannot be read"]),
        (1, ["--train", "garbage.npz"], ["garbage.npz cannot be read"]),
        (1, ["--train", "onehot.npz"], ["invalid labels", "argmax(1)"]),
        (1, ["--train", "column.npz"], ["invalid labels", "labels.squeeze(1)"]),
        (1, ["--train", "uneven.npz"], ["240 labels"]),
        (1, ["--train", "list.pt"], ["holds a Tensor"]),
        (1, ["--train", "no_folders"], ["no sub-folders"]),
        (1, ["--train", "no_images"], ["no images", ".png"]),
        (1, ["--train", "broken"], ["Cannot decode the image broken/ant/x.png", "Replace or remove"]),
        (1, ["--train", "mixed"], ["differ in size: 4 x 5 and 8 x 8", "resize"]),
    ],
)
def test_data_that_cannot_be_used(
    images: Path, toy: Toy, cli: Cli, code: int, flags: list[str], words: list[str]
) -> None:
    np.savez(images / "flat.npz", x=toy.x.reshape(240, -1), y=toy.y)
    np.savez(images / "names.npz", a=toy.x, b=toy.y)
    np.savez(images / "objects.npz", x=np.array([object()]), y=np.array([0]))
    (images / "garbage.npz").write_bytes(b"PK nonsense")
    np.savez(images / "onehot.npz", x=toy.x, y=np.eye(4)[toy.y])
    np.savez(images / "column.npz", x=toy.x, y=toy.y[:, None])
    np.savez(images / "uneven.npz", x=toy.x[:3], y=toy.y)
    torch.save(torch.zeros(3), images / "list.pt")
    for folder in ("no_folders", "no_images/ant", "broken/ant", "mixed/ant"):
        (images / folder).mkdir(parents=True)
    (images / "no_images" / "ant" / "notes.txt").write_text("no image")
    (images / "broken" / "ant" / "x.png").write_bytes(b"no image")
    Image.new("RGB", (8, 8)).save(images / "mixed" / "ant" / "a.png")
    Image.new("L", (5, 4)).save(images / "mixed" / "ant" / "b.png")
    config = [] if flags[0].startswith("--resize") or "train_images" in flags else ["--val="]
    names = ["--class-names", ",".join(CLASSES)]
    failed = cli("fit", *flags, *config, *names)
    assert failed.code == code
    for word in words:
        assert word in failed.err
    assert not (images / "grams.safetensors").exists()
