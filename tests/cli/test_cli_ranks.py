"""The command line under torchrun: two processes, one writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import gap
from toy_project import Cli, files

import unweave

SOURCE = Path(unweave.__file__).parent.parent

DEADLY = """
import os, signal
import numpy as np, torch

class Deadly(torch.utils.data.Dataset):
    def __init__(self):
        data = np.load("train.npz")
        self.x, self.y = torch.from_numpy(data["x"]).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(data["y"])
    def __len__(self):
        return len(self.y)
    def __getitem__(self, i):
        if i == 100 and os.path.exists("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.x[i], self.y[i]
"""


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours on two processes of one thread each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, "-m", "unweave", *words], capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.mark.filterwarnings("default::unweave.errors.UnweaveWarning")
def test_two_processes_write_what_one_writes(fitted: Path, cli: Cli) -> None:
    grams = unweave.LayerGrams.load(fitted / "grams.safetensors")
    done = torchrun("fit", "--json", "--grams", "two.safetensors")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)  # one object: one rank has printed
    assert record["samples"] == 240
    found = unweave.LayerGrams.load(fitted / "two.safetensors")
    assert found.origin == grams.origin
    assert found.layers == grams.layers
    assert all(gap(found[name], grams[name]) < 1e-10 for name in grams)

    done = torchrun("forget", "--ids", "ids.txt", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]
    assert cli("forget", "--ids", "ids.txt", "--out", "one.safetensors").code == 0
    here, there = (unweave.LayerGrams.load(fitted / f"{name}.grams.safetensors") for name in ("forgotten", "one"))
    assert here.origin.forgotten == there.origin.forgotten
    assert all(gap(here[name], there[name]) < 1e-5 for name in here)


def test_a_killed_rank_ends_the_job_and_the_next_one_resumes(fitted: Path) -> None:
    (fitted / "deadly").touch()
    (fitted / "deadly_data.py").write_text(DEADLY)
    before = files(fitted)
    words = ["fit", "--train", "deadly_data:Deadly", "--batch-size", "8", "--grams", "new.safetensors"]
    words += ["--resume", "sums", "--save-every", "2"]
    began = time.perf_counter()
    died = torchrun(*words)
    assert time.perf_counter() - began < 60
    assert died.returncode != 0
    assert "unweave: error on rank 1: " in died.stderr, "rank 0 is the one that died: whoever is left says so"
    assert "Nothing was written" in died.stderr
    assert "SIGKILL" in died.stderr, "the launcher names the rank and the signal"
    left = files(fitted) - before
    assert left <= {"sums/fit-0-of-2.safetensors", "sums/fit-1-of-2.safetensors"}
    assert left, "something to resume from"

    (fitted / "deadly").unlink()
    done = torchrun(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert files(fitted) - before - {"deadly"} == {"new.safetensors"}, "the sums are gone once they are in the Grams"
    again = torchrun(*words[:-4], "--resume", "others", "--save-every", "2", "--grams", "other.safetensors")
    assert again.returncode == 0, again.stderr
    found, expected = (unweave.LayerGrams.load(fitted / f"{name}.safetensors") for name in ("new", "other"))
    assert found == expected, "the same sums in the same order"


def test_an_error_on_one_rank_is_told_once_by_each(fitted: Path) -> None:
    (fitted / "bad_data.py").write_text(
        DEADLY.replace("os.kill(os.getpid(), signal.SIGKILL)", "return self.x[i] * float('nan'), self.y[i]")
    )
    (fitted / "deadly").touch()
    done = torchrun("fit", "--train", "bad_data:Deadly", "--batch-size", "8", "--grams", "new.safetensors")
    assert done.returncode != 0
    assert "NaN or infinite values" in done.stderr
    assert "unweave: error on rank " in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr.partition("torch/distributed")[0]
    assert not (fitted / "new.safetensors").exists()


def test_other_commands_run_on_one_process(project: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    refused = cli("init")
    assert refused.code == 2
    assert "runs on one process" in refused.err
