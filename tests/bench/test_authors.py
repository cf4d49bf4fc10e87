"""What the authors' code is given, and what is said where it cannot run. Their code itself is not here."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import unweave
from benchmarks import authors, authors_child
from benchmarks.cases import Case, patterns, toy
from experiments.datasets.images import MEAN, STD
from experiments.training.models import allcnn
from unweave.errors import ConfigError

STUB = """
import json, sys
sys.path  # a child that fails as their code may
raise SystemExit("no such thing")
"""


def checkout(folder: Path) -> Path:
    for name in authors.NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


def test_a_folder_that_is_not_theirs_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "unlearn.py").write_text("")
    with pytest.raises(ConfigError, match=r"utils/unlearn_utils\.py.* missing.*Clone https"):
        authors.require_reference(tmp_path, "cuda")


def test_without_torchvision_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs torchvision.*Install"):
        authors.require_reference(checkout(tmp_path), "cuda")


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authors.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="--device cuda"):
        authors.require_reference(checkout(tmp_path), "cpu")


def test_pixels_are_the_bytes_the_images_were_made_of() -> None:
    data = patterns(20, 4, 6, "cpu", seed=3)
    pixels = authors.pixels_of(data)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (20, 6, 6, 3))
    again = (pixels / 255 - np.array(MEAN)) / np.array(STD)
    assert np.allclose(again.transpose(0, 3, 1, 2), data.x.numpy(), atol=1e-5)
    with pytest.raises(ValueError, match="not bytes"):
        authors.pixels_of(dataclasses.replace(data, x=data.x + 0.01))


@pytest.fixture
def small() -> Case:
    data = patterns(20, 10, 32, "cpu", seed=3)
    config, papers = unweave.ForgetConfig(), unweave.ForgetConfig.paper("allcnn-cifar10")
    chosen = torch.arange(2)
    return Case("allcnn", allcnn, data, data, chosen, chosen, "random pixels", config, papers, 1)


def test_their_script_is_told_the_published_settings(small: Case, tmp_path: Path) -> None:
    net = allcnn().eval()
    authors.prepare(tmp_path, small, net, net)
    request = json.loads((tmp_path / "request/given.json").read_text())
    told = {"retained_var": 0.9, "start_lr": 0.1, "end_lr": 0.01, "loss2_w": 0.2, "offset": 0.05, "num_epochs": 100}
    assert told.items() <= request.items()
    assert request["unlearn_steps"] == [{"forget_range": [[0, 500]]}]
    kept = torch.load(tmp_path / "weights.pt")
    assert all(torch.equal(a, b) for a, b in zip(kept["original"], net.state_dict().values(), strict=True))
    assert torch.allclose(kept["logits"], net(small.val.x[:8]).detach())


Run = Callable[..., authors.Authors]


@pytest.fixture
def run_with(small: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a few lines in place of the process that would run their code."""

    def run(lines: str, repeats: int, limit: float | None = None) -> authors.Authors:
        child = tmp_path / "child.py"
        child.write_text(lines)
        monkeypatch.setattr(authors, "CHILD", child)
        net = allcnn().eval()
        return authors.run_authors(checkout(tmp_path / "theirs"), small, net, net, repeats, limit)

    return run


def test_a_failure_of_theirs_is_reported_and_costs_nothing_else(run_with: Run) -> None:
    found = run_with(STUB, 2)
    assert found.rows == {}
    assert found.left_out == {"authors": "failed: exit code 1; no such thing"}


CUT_OFF = """
import json
limit = json.load(open("limit.json"))
request = {"cut off": f"cut off after {limit:g} s with 3 epochs done"}
json.dump({"seconds": {"authors' pass": 1.5}, "request": request, "stand-ins": []}, open("seen.json", "w"))
"""


def test_what_was_timed_before_their_script_was_cut_off_is_kept(run_with: Run) -> None:
    found = run_with(CUT_OFF, 3, limit=7)
    assert found.rows["authors' pass"]["seconds"] == [1.5], "it is not begun again"
    assert found.left_out == {"authors' request": "cut off after 7 s with 3 epochs done"}


def test_a_pass_that_was_cut_off_is_named(run_with: Run) -> None:
    stub = CUT_OFF.replace('"cut off":', '"pass cut off":').replace(" with 3 epochs done", "")
    assert run_with(stub, 3, limit=7).left_out == {
        "authors' pass, data on the device": "cut off after 7 s",
        "authors' request": "not run: their script for classes reads ImageNet folders in its own way",
    }


@pytest.mark.parametrize("limit, ended", [(0.2, "cut off after 0.2 s with 2 epochs done"), (None, "to its end")])
def test_their_script_ends_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None, ended: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    Path("limit.json").write_text(json.dumps(limit))
    Path("unlearn.py").write_text("import time\ntime.sleep(0.4)\n")
    for look in range(3):
        path = Path(f"request/results/run/ckp/ckp_{look}.pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    clocks = authors_child.Clocks()
    clocks.began = clocks.now()
    came_to = authors_child.run_script(tmp_path, clocks)
    assert (came_to.get("cut off") or came_to["ended"]) == ended
    assert ("authors' request" in clocks.taken) == (limit is None)


@pytest.mark.parametrize("limit, said", [(0.1, {"pass cut off": "cut off after 0.1 s"}), (None, {})])
def test_their_pass_ends_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None, said: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("limit.json").write_text(json.dumps(limit))
    monkeypatch.setattr(authors_child, "_passes", lambda *args: time.sleep(0.3) or {"pass": 0.3})
    seconds, found = authors_child.passes_in_time(None, None, authors_child.Clocks())
    assert found == said
    assert seconds == ({} if said else {"pass": 0.3})


def test_a_network_they_have_not_is_left_out() -> None:
    case = toy("cpu")
    found = authors.run_authors(Path("nowhere"), case, case.build(), case.build(), 1)
    assert "no network like toy" in found.left_out["authors"]


def test_clocks_note_what_a_function_takes_and_leave_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    clocks = authors_child.Clocks()
    monkeypatch.setattr(clocks, "now", lambda: float(next(ticks)))

    class Module:
        work = staticmethod(lambda a, b=1: a + b)

    clocks.wrap(Module, "work", lambda *args: f"of {args[0]}", begins=True)
    assert [Module.work(1), Module.work(2, b=5), Module.work(1)] == [2, 7, 2]
    assert clocks.taken == {"of 1": 2.0, "of 2": 1.0}
    assert clocks.began == 4.0


def test_the_stand_in_for_easydict_reaches_all_the_way_down() -> None:
    made = authors_child.Dict({"a": {"b": [{"c": 1}]}})
    made.a.b[0].c = 2
    made.d = {"e": 3}
    assert (made.a.b[0].c, made.d.e, made.get("f", 4), hasattr(made, "g")) == (2, 3, 4, False)
    assert json.loads(json.dumps(made)) == {"a": {"b": [{"c": 2}]}, "d": {"e": 3}}
