"""Runs the authors' code unchanged in the folder that ``authors.py`` prepared, and notes what it took in seen.json.

    python authors_child.py CHECKOUT        with the prepared folder as the current one

Their functions are imported from the checkout and wrapped by clocks before their script takes them over. Only the
reader of CIFAR-10 files is replaced, since the images come as arrays. Small packages they use for settings and for
drawing have stand-ins here where they are not installed (noted in the result): none is in what is timed, but for the
drawing, which is subtracted.

"authors' pass" is their ``compute_svd`` with their loader (six processes, augmentation), "… data on the device" the
same function with batches that are there already. "authors' request" runs from their ``compute_retain_svd`` to the end
of the script; "… less looks at the retained set and plots" is that without what the method does not need. The looks at
the forget and the validation set stay in: it does need them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RETAINED = "[Unlearned] - Retain train"
"""Their name for the look at the retained set."""


class Dict(dict[str, Any]):
    """What easydict has: a dict whose items are attributes, all the way down."""

    def __init__(self, items: Any = ()) -> None:
        super().__init__({key: _deep(value) for key, value in dict(items).items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = _deep(value)


def _deep(value: Any) -> Any:
    if isinstance(value, dict):
        return Dict(value)
    return [_deep(item) for item in value] if isinstance(value, (list, tuple)) else value


class Silent(types.ModuleType):
    """A module every function of which does nothing, but for the members that are given."""

    def __init__(self, name: str, **members: Any) -> None:
        super().__init__(name)
        self.__dict__.update(members)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return {} if name == "rcParams" else lambda *args, **kwargs: None


def stand_in() -> list[str]:
    """Put stand-ins where a small package is missing; returns their names."""
    pyplot = Silent("matplotlib.pyplot")
    members: dict[str, dict[str, Any]] = {
        "easydict": {"EasyDict": Dict},
        "yaml": {
            "safe_load": lambda text: json.loads(text if isinstance(text, str) else text.read()),
            "dump": lambda value, file=None, **_: file.write(json.dumps(value)) if file else json.dumps(value),
            "YAMLError": ValueError,
        },
        "tqdm": {"tqdm": lambda batches: batches},
        "matplotlib": {"pyplot": pyplot},
    }
    missing = [name for name in members if importlib.util.find_spec(name) is None]
    sys.modules.update({name: Silent(name, **members[name]) for name in missing})
    if "matplotlib" in missing:
        sys.modules[pyplot.__name__] = pyplot
    return missing


class Clocks:
    """Seconds by name, and when the request began."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self.began: float | None = None

    def wrap(self, module: Any, name: str, label: Callable[..., str], begins: bool = False) -> None:
        """Let a function of a module note its seconds under ``label(*args)``; the function itself is as it was."""
        original = getattr(module, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            began = self.now()
            if begins:
                self.began = began
            made = original(*args, **kwargs)
            key = label(*args)
            self.taken[key] = self.taken.get(key, 0.0) + self.now() - began
            return made

        setattr(module, name, noting)

    @staticmethod
    def now() -> float:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def from_arrays(
    self: Any,
    root: str,
    train: bool = True,
    transform: Any = None,
    target_transform: Any = None,
    download: bool = False,
) -> None:
    """In place of torchvision's reader of CIFAR-10's files; ``root`` says which images."""
    import numpy as np

    self.root, self.transform, self.target_transform = root, transform, target_transform
    self.data, self.targets = np.load(f"{root}/pixels.npy"), np.load(f"{root}/labels.npy").tolist()


def build(learned: dict[str, Any], tensors: list[Any]) -> Any:
    """Their network with our weights, which come in the same order, whatever the names."""
    backbone = importlib.import_module("backbone")
    net = getattr(backbone, learned["net"]["backbone"].removeprefix("backbone."))(**learned["net"]["params"])
    names = list(net.state_dict())
    if [tuple(v.shape) for v in net.state_dict().values()] != [tuple(v.shape) for v in tensors]:
        raise SystemExit("the authors' network has other weights than ours: not the checkout this was written for")
    net.load_state_dict(dict(zip(names, tensors, strict=True)))
    return net.eval()


def place_weights(learned: dict[str, Any], request: dict[str, Any]) -> Any:
    """Checkpoints where their script looks for them; returns the original, and checks that it answers as ours does."""
    import torch

    kept = torch.load("weights.pt")
    original = build(learned, kept["original"])
    with torch.no_grad():
        gap = float((original(kept["inputs"]) - kept["logits"]).abs().max())
    if gap > 0.05 * float(kept["logits"].abs().max()):
        raise SystemExit(f"the authors' network answers otherwise than ours with the same weights: off by {gap:.3g}")
    places = {"original": Path("learned")}
    for step in request["unlearn_steps"]:
        last, classes = step["forget_range"][0][1], len(step["forget_range"])
        places["retrained"] = Path(
            f"exp/learned/{request['model']}_{request['dataset']}/forget_0-{last}_{classes}classes"
        )
    for name, folder in places.items():
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        torch.save({"model": build(learned, kept[name]).state_dict()}, folder / "checkpoints/ckp.pth")
    return original


def warm_up() -> None:
    """Load the libraries that products, SVDs and convolutions come from."""
    import torch

    if torch.cuda.is_available():
        x = torch.randn(256, 256, dtype=torch.float64, device="cuda")
        torch.svd(x @ x.mT)
        torch.nn.functional.conv2d(torch.randn(8, 8, 32, 32, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda"))
        torch.cuda.synchronize()


def run_script(checkout: Path, clocks: Clocks) -> dict[str, Any]:
    """Their ``unlearn.py``, as if from the shell; returns what it came to."""
    sys.argv = ["unlearn.py", "request/config.yaml"]
    ended = "to its end"
    limit = limit_given()
    try:
        with bell_after(limit):
            runpy.run_path(str(checkout / "unlearn.py"), run_name="__main__")
    except SystemExit as leaving:
        ended = f"their script left early ({leaving.code}): unlearning too fast"
    except TimeoutError:
        return {"cut off": f"cut off after {limit:g} s with {epochs_done()} epochs done"}
    end = clocks.now()
    if clocks.began is None:
        raise SystemExit("the authors' script never came to its request")
    aside = sum(clocks.taken.get(name, 0.0) for name in (RETAINED, "histograms", "plots"))
    clocks.taken["authors' request"] = end - clocks.began
    clocks.taken["authors' request, less looks at the retained set and plots"] = end - clocks.began - aside
    return {"ended": ended, "epochs": epochs_done()}


def limit_given() -> float | None:
    """Seconds that the script, and then the pass, may take."""
    limit: float | None = json.loads(Path("limit.json").read_text())
    return limit


def epochs_done() -> int:
    """Their script keeps a network at every look, the first of which is before any step."""
    return max(len(list(Path("request/results").glob("*/ckp/ckp_*.pt"))) - 1, 0)


@contextlib.contextmanager
def bell_after(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in what runs inside after so many seconds; None: let it run."""

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    checkout = Path(sys.argv[1])
    sys.path[0] = str(checkout)
    os.environ.setdefault("MPLBACKEND", "Agg")
    stood_in = stand_in()
    import torch
    import torchvision

    torchvision.datasets.CIFAR10.__init__ = from_arrays
    general, unlearning = (importlib.import_module(f"utils.{name}_utils") for name in ("general", "unlearn"))
    for folder in ("exp", "request/results"):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("learned", "request"):
        shutil.copy(f"{name}/given.json", f"{name}/config.yaml")
    learned, request = (json.loads(Path(f"{name}/given.json").read_text()) for name in ("learned", "request"))
    original = place_weights(learned, request)
    warm_up()
    clocks = Clocks()
    clocks.wrap(general, "evaluate", lambda *args: str(args[2]))
    clocks.wrap(general, "plot_histograms", lambda *args: "histograms")
    clocks.wrap(general.plt, "savefig", lambda *args: "plots")
    clocks.wrap(unlearning, "compute_svd", lambda *args: "authors' pass")
    clocks.wrap(unlearning, "compute_retain_svd", lambda *args: "authors' retain SVD", begins=True)
    came_to: dict[str, Any] = {}
    if request["unlearn_steps"]:
        came_to = run_script(checkout, clocks)
    wrapped = clocks.taken.pop("authors' pass", None)
    seconds, said = passes_in_time(unlearning, original, clocks)
    came_to |= said
    if wrapped is not None:
        seconds["authors' pass"] = wrapped
    seconds |= {name: value for name, value in clocks.taken.items() if "request" in name or "retain SVD" in name}
    seen = {"seconds": seconds, "request": came_to, "stand-ins": stood_in, "torch": str(torch.__version__)}
    Path("seen.json").write_text(json.dumps(seen))


def passes_in_time(unlearning: Any, original: Any, clocks: Clocks) -> tuple[dict[str, float], dict[str, str]]:
    """The seconds of their pass; or none, and that its time was over."""
    limit = limit_given()
    try:
        with bell_after(limit):
            return _passes(unlearning, original, clocks), {}
    except TimeoutError:
        return {}, {"pass cut off": f"cut off after {limit:g} s"}


def _passes(unlearning: Any, original: Any, clocks: Clocks) -> dict[str, float]:
    """Their full-data pass once more, with batches of their size (125) on the device already and not augmented."""
    import numpy as np
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    pixels, labels = torch.from_numpy(np.load("train/pixels.npy")), torch.from_numpy(np.load("train/labels.npy"))
    mean, std = (
        torch.tensor(values, device=device).view(1, 3, 1, 1)
        for values in ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023))
    )
    images = torch.cat([(p.to(device).permute(0, 3, 1, 2).float() / 255 - mean) / std for p in pixels.split(10_000)])
    batches = list(zip(images.split(125), labels.to(device).split(125), strict=True))
    with contextlib.redirect_stdout(sys.stderr):
        unlearning.compute_svd(original.to(device), batches)
    return {"authors' pass, data on the device": clocks.taken.pop("authors' pass")}


if __name__ == "__main__":
    main()
