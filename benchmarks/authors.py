"""The authors' own code on the same weights and data, run unchanged from a checkout of their repository.

For AllCNN and SmallVGG their script ``unlearn.py`` runs as it is, in a process and a folder of its own, with their
published settings; timed inside it are its full-data pass and its request (``authors_child.py`` says how). For
ResNet-18 only the full-data pass is timed: their script for classes reads ImageNet folders in its own way. Nothing of
theirs is kept here; what their code needs and this machine lacks is said before anything is timed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cases import Case
from benchmarks.provenance import commit_of
from benchmarks.timing import summed_up
from experiments.data import Labelled
from experiments.datasets.images import MEAN, STD
from unweave.errors import ConfigError

NEEDED = (
    "unlearn.py",
    "utils/general_utils.py",
    "utils/unlearn_utils.py",
    "backbone/__init__.py",
    "datasets/__init__.py",
)
CHILD = Path(__file__).with_name("authors_child.py")
BACKBONES = {
    "allcnn": ("AllCNN", {"num_classes": 10, "dropout": False}, [[0, 500]]),
    "smallvgg": ("SmallVGG", {"num_classes": 10, "dropout": 0.5}, [[0, 100]] * 10),
    "resnet18": ("Resnet18", {"num_classes": 200}, None),
}
"""Their class and its arguments, and what is forgotten of each class; None where only the pass is run."""


@dataclass
class Authors:
    """What was timed, and what was not and why."""

    rows: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def require_reference(checkout: Path, device: str) -> None:
    """See before the work whether their code can run here.

    Raises:
        ConfigError: no checkout of theirs, no torchvision, or no GPU.
    """
    missing = [name for name in NEEDED if not (checkout / name).is_file()]
    if missing:
        raise ConfigError(
            f"--reference {checkout} is not a checkout of the authors' repository: {', '.join(missing)} missing. Clone "
            "https://github.com/hnanhtuan/projected_gradient_unlearning and give that folder."
        )
    if importlib.util.find_spec("torchvision") is None:
        raise ConfigError(
            "--reference needs torchvision, which is not installed: the authors' code takes its feature extractor and "
            "transforms from it. Install the one that fits your PyTorch, or leave --reference out."
        )
    if torch.device(device).type != "cuda":
        raise ConfigError("--reference needs --device cuda: the authors' script moves its networks to a GPU.")


def run_authors(
    checkout: Path, case: Case, net: nn.Module, retrained: nn.Module, repeats: int, limit: float | None = None
) -> Authors:
    """Run their code ``repeats`` times, each in a fresh process that warms up first; its script and its pass over the
    data at most ``limit`` seconds each."""
    found = Authors()
    if case.name not in BACKBONES:
        found.left_out["authors"] = f"not run: their code has no network like {case.name}"
        return found
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place, case, net, retrained)
        (place / "limit.json").write_text(json.dumps(limit))
        taken: list[dict[str, Any]] = []
        for _ in range(repeats):
            seen = _child(place, checkout)
            if isinstance(seen, str):
                found.left_out["authors"] = f"failed: {seen}"
                return found
            taken.append(seen)
            over = {"cut off": "authors' request", "pass cut off": "authors' pass, data on the device"}
            cut = {way: seen["request"].pop(said) for said, way in over.items() if said in seen["request"]}
            if cut:
                found.left_out |= cut
                break
    for name in dict.fromkeys(name for one in taken for name in one["seconds"]):
        timed = [one for one in taken if name in one["seconds"]]
        made_of = {"stand-ins": taken[0]["stand-ins"], "their commit": commit_of(checkout)}
        found.rows[name] = summed_up([one["seconds"][name] for one in timed]) | made_of
        if "request" in name:
            found.rows[name] |= timed[-1]["request"]
    if "authors' request" not in found.left_out | found.rows:
        found.left_out["authors' request"] = "not run: their script for classes reads ImageNet folders in its own way"
    return found


def _child(place: Path, checkout: Path) -> dict[str, Any] | str:
    """What their code took, or the last line it left behind."""
    words = [sys.executable, str(CHILD), str(checkout.resolve())]
    with open(place / "log.txt", "w", encoding="utf-8") as log:
        done = subprocess.run(words, cwd=place, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        lines = (place / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"exit code {done.returncode}; {lines[-1] if lines else 'no output'}"
    seen: dict[str, Any] = json.loads((place / "seen.json").read_text())
    return seen


def prepare(place: Path, case: Case, net: nn.Module, retrained: nn.Module) -> None:
    """Write the weights, the images as bytes, and the two configurations their script reads (JSON, which is YAML)."""
    backbone, parameters, ranges = BACKBONES[case.name]
    for name, data in {"train": case.train, "val": case.val}.items():
        (place / name).mkdir()
        np.save(place / name / "pixels.npy", pixels_of(data))
        np.save(place / name / "labels.npy", data.y.cpu().numpy())
    with torch.no_grad():
        logits = net(case.val.x[:8]).float().cpu()
    torch.save(
        {"original": _tensors(net), "retrained": _tensors(retrained), "logits": logits, "inputs": case.val.x[:8].cpu()},
        place / "weights.pt",
    )
    sets = {
        name: {
            "name": "datasets.UnlearnCIFAR10",
            "root": str(place / name),
            "params": {"data_set": "train", "download": False, "forget_range": None, "data_section": "full"},
        }
        for name in ("train", "val")
    }
    learned = {
        "params": {"image_size": case.train.x.shape[-1]},
        "dataset": sets,
        "net": {"backbone": f"backbone.{backbone}", "params": parameters},
    }
    papers = case.papers.resolved()
    request = {
        "model": case.name,
        "dataset": "data",
        "learned_config": str(place / "learned" / "config.yaml"),
        "unlearn_steps": [{"forget_range": ranges}] if ranges else [],
        "retained_var": papers.gamma if isinstance(papers.gamma, float) else dict(papers.gamma),
        "start_lr": papers.lr,
        "end_lr": papers.lr_end,
        "loss2_w": papers.lam,
        "offset": papers.eps,
        "num_epochs": papers.epochs,
        "num_bins": 101,
    }
    for name, content in {"learned": learned, "request": request}.items():
        (place / name).mkdir()
        (place / name / "given.json").write_text(json.dumps(content))


def pixels_of(data: Labelled) -> np.ndarray:
    """uint8 [N, H, W, 3] that normalise to the images [N, 3, H, W] again.

    Raises:
        ValueError: images that are no bytes.
    """
    mean, std = (torch.tensor(values, device=data.x.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    parts = []
    for x in data.x.split(10_000):
        exact = (x * std + mean) * 255
        bytes_ = exact.round().clamp(0, 255)
        if float((exact - bytes_).abs().max()) > 0.01:
            raise ValueError("Invalid images: not bytes normalised by the authors' mean and deviation.")
        parts.append(bytes_.to(torch.uint8).permute(0, 2, 3, 1).cpu())
    return torch.cat(parts).contiguous().numpy()


def _tensors(net: nn.Module) -> list[Tensor]:
    return [value.detach().cpu().contiguous() for value in net.state_dict().values()]
