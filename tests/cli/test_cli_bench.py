"""``unweave bench``: every benchmark runs in its quick form and leaves a result that says what it was made by."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from torch import nn
from toy_project import Cli

import unweave
from benchmarks import others, side_by_side, suite, training
from benchmarks.cases import toy
from benchmarks.options import NETWORKS, Options
from experiments.training.recipes import RECIPES
from unweave.baselines import BASELINES, BaselineResult, Method
from unweave.cli import bench


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    suite.run([], Options(quick=True, repeats=1, slow_repeats=1), folder)
    return {path.name: json.loads(path.read_text("utf-8")) for path in folder.iterdir()}


def test_every_benchmark_leaves_a_result_with_what_it_was_made_by(results: dict[str, Any]) -> None:
    assert set(results) == {f"bench-{name}-cpu-quick.json" for name in suite.BENCHMARKS}
    for result in results.values():
        assert {"commit", "torch", "processors", "gpu", "date"} <= set(result["made_by"])
        assert result["settings"]["quick"] is True
        assert result["seconds"] > 0


def test_side_by_side_times_every_way_and_says_what_was_left_out(results: dict[str, Any]) -> None:
    toy_net = results["bench-side-by-side-cpu-quick.json"]["networks"]["toy"]
    wanted = {"forward pass", "fit", "request", "request after it", "plain fit", "plain request", "retrain"}
    assert wanted <= set(toy_net["ways"])
    for row in toy_net["ways"].values():
        assert 0 < row["min"] <= row["median"] <= row["max"]
    assert toy_net["pixels"] == "random pixels"
    assert "--reference" in toy_net["left out"]["authors"]
    assert {"forget error", "retained error", "validation error"} <= set(toy_net["ways"]["request"])


def test_growth_has_an_exponent_for_every_axis_and_a_fixed_number_of_epochs(results: dict[str, Any]) -> None:
    result = results["bench-growth-cpu-quick.json"]
    assert result["problem"]["stop"] == "epochs"
    assert set(result["axes"]) == {"forget_samples", "training_samples", "classes", "width", "depth", "image"}
    # Bytes are counted, not timed: a request's activations are as many as its samples, and Grams are quadratic in d.
    assert result["axes"]["forget_samples"]["exponents"]["request"]["bytes"]["all"]["exponent"] > 0.7
    assert 1.5 < result["axes"]["width"]["exponents"]["space"]["bytes"]["all"]["exponent"] < 2.1
    assert result["axes"]["training_samples"]["exponents"]["space"]["bytes"]["all"]["exponent"] == pytest.approx(0)


def test_eigen_measures_what_each_way_is_off_by(results: dict[str, Any]) -> None:
    result = results["bench-eigen-cpu-quick.json"]
    ways = result["sizes"][-1]["ways"]
    assert ways["sign function, 40 steps"]["distance"] < 1e-6
    assert ways["perturbation, 1 step"]["distance"] < ways["the basis of before"]["distance"]
    assert any("extrapolated" in key for key in result["laws"]["eigh"])


def test_training_counts_a_recipes_epochs_from_a_few(results: dict[str, Any]) -> None:
    row = results["bench-training-cpu-quick.json"]["recipes"]["quick"]
    assert row["epochs"] == RECIPES["quick"].epochs
    assert list(row["several"]["ways"]) == ["streams", "grouped", "vmapped"]
    for way in (row, row["plain"], *row["several"]["ways"].values()):
        assert way["all epochs"] == pytest.approx(row["epochs"] * way["an epoch"]["median"])


@pytest.mark.parametrize(("spent", "epoch"), [([5, 11, 6, 12], 2), ([5, 20, 6, 12, 6, 12], 2), ([5, 4], None)])
def test_training_takes_out_what_starts_it(
    spent: list[float], epoch: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One and four epochs in turn, the very first run to load kernels; written plainly all takes twice as long."""
    ran, clock = list[int](), iter([99.0, *spent, 99.0, *(2 * seconds for seconds in spent)])

    def timed(
        work: Callable[[], int], device: str, repeats: int, warm: int, limit: float | None
    ) -> tuple[None, list[float]]:
        taken = [(ran.append(work()), next(clock))[1] for _ in range(warm + repeats)]
        return None, taken[warm:]

    for way in ("train_recipe", "train_plainly"):
        monkeypatch.setattr(training, way, lambda recipe, *_: recipe.epochs)
    monkeypatch.setattr(training, "timed", timed)
    monkeypatch.setattr(training, "SEVERAL", ())
    document = training.run(Options(quick=True, slow_repeats=len(spent) // 2))
    row, shown = document["recipes"]["quick"], training.table(document)
    assert ran == 2 * [1, *[1, 4] * (len(spent) // 2)]
    for way, times in ((row, 1), (row["plain"], 2)):
        assert (way["an epoch"] and way["an epoch"]["median"]) == (times * epoch if epoch else None)
        assert way["all epochs"] == (12 * times * epoch if epoch else None)
        assert (f"{24 * times} s for 12" if epoch else "the machine was too busy") in shown
        assert way["seconds of so many epochs"] == {
            "1": [times * s for s in spent[::2]],
            "4": [times * s for s in spent[1::2]],
        }


def test_every_recipe_belongs_to_a_network_and_has_images_to_be_timed_on() -> None:
    named = {n: [r.name for r in training.recipes_for(Options(networks=(n,)))] for n in (*NETWORKS, "demo")}
    assert named["resnet18"] == ["resnet18-tiny", "resnet18-tiny-paper"]
    assert named["demo"] == ["quick"]
    assert sorted(name for names in named.values() for name in names) == sorted(RECIPES)
    for recipe in RECIPES.values():
        assert any(name in training.SHAPES for name in recipe.name.split("-"))


def test_every_recipe_can_be_timed_by_a_few_of_its_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[tuple[str, int]]()
    for way in ("train_recipe", "train_plainly"):
        monkeypatch.setattr(training, way, lambda recipe, *_: ran.append((recipe.name, recipe.epochs)))
    monkeypatch.setattr(training, "noise_for", lambda *_: [])
    monkeypatch.setattr(training, "SEVERAL", ())
    training.run(Options(networks=(*NETWORKS, "demo"), slow_repeats=1))
    assert set(ran) == {(name, epochs) for name in RECIPES for epochs in (training.SHORT, training.LONG)}


def test_what_was_measured_until_ctrl_c_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: Options) -> NoReturn:
        options.keep({"networks": {}})
        raise KeyboardInterrupt

    monkeypatch.setitem(suite.BENCHMARKS, "eigen", replace(suite.BENCHMARKS["eigen"], run=interrupted))
    shown = cli("bench", "eigen", "--quick", "--device", "cpu", "--out", str(tmp_path))
    assert shown.code == 130
    assert f"what was measured until then is in {tmp_path / 'bench-eigen-cpu-quick.unfinished.json'}" in shown.err


def test_the_command_runs_one_by_name_and_prints_its_table(cli: Cli, tmp_path: Path) -> None:
    shown = cli("bench", "eigen", "--quick", "--device", "cpu", "--out", str(tmp_path))
    assert shown.code == 0, shown.err
    assert "extrapolated to 50000" in shown.out
    assert [path.name for path in tmp_path.iterdir()] == ["bench-eigen-cpu-quick.json"]


def test_without_a_place_the_results_of_the_checkout_are_left_alone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []
    monkeypatch.setattr(suite, "run", lambda names, options, folder: places.append(folder.resolve()))
    monkeypatch.chdir(tmp_path)
    assert cli("bench", "eigen", "--quick").code == 0
    assert cli("bench", "eigen", "--quick", "--out", "results").code == 0
    assert places == [tmp_path / "bench-results", tmp_path / "results"]
    assert "bench-results/" in (bench.checkout() / ".gitignore").read_text("utf-8").splitlines()


def test_a_real_run_has_another_name_than_a_quick_one() -> None:
    assert suite.place_of("eigen", Options(device="cuda:1"), Path("r")) == Path("r/bench-eigen-cuda.json")
    one = Options(device="cuda", networks=("allcnn",))
    assert suite.place_of("side-by-side", one, Path("r")) == Path("r/bench-side-by-side-allcnn-cuda.json")


@pytest.mark.parametrize("named", [("demo",), ("resnet18", "demo"), ()])
def test_every_network_of_the_help_can_be_named(named: tuple[str, ...]) -> None:
    options = Options(networks=named)
    assert suite.check(["side-by-side"], options) == ["side-by-side"]
    assert options.wanted() == (named or ("demo",))
    assert Options("cuda", networks=named).wanted() == (named or ("allcnn", "smallvgg", "resnet18"))


@pytest.mark.parametrize(
    "words, said",
    [
        (["nothing"], "Unknown benchmark: nothing. Supported: side-by-side"),
        (["side-by-side", "--networks", "vgg"], "Unknown network: vgg. Supported: allcnn"),
        (["training", "--networks", "allcnn", "--device", "cpu"], "take hours on a CPU. Use --device cuda, or"),
        (["side-by-side", "--others", "scrubb"], "Unknown baseline: scrubb. Supported: retrain"),
        (["--device", "tpu"], "Invalid --device: 'tpu'. Supported: cpu, cuda"),
        (["side-by-side", "--cifar10", "nowhere"], "--cifar10 nowhere is not there"),
        (["side-by-side", "--reference", "nowhere"], "not a checkout of the authors' repository"),
    ],
)
def test_what_cannot_be_run_is_refused_before_the_work(cli: Cli, tmp_path: Path, words: list[str], said: str) -> None:
    shown = cli("bench", *words, "--quick", "--out", str(tmp_path / "out"))
    assert shown.code == 2
    assert said in shown.err
    assert not (tmp_path / "out").exists()


def test_outside_of_a_checkout_it_says_where_to_run_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unweave, "__file__", str(tmp_path / "site/lib/unweave/__init__.py"))
    monkeypatch.chdir(tmp_path)
    shown = cli("bench", "--quick")
    assert shown.code == 2
    assert "unweave bench runs from a checkout" in shown.err
    assert "Clone" in shown.err


def test_the_current_folder_may_be_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = bench.checkout()
    monkeypatch.setattr(unweave, "__file__", str(tmp_path / "site/lib/unweave/__init__.py"))
    monkeypatch.chdir(root)
    assert bench.checkout() == root


# ------------------------------------------------------------------------------------------------------ other methods


@dataclass(frozen=True)
class Settings:
    epochs: int = 1


def unchanged(model: nn.Module, forget_loader: Any, retain_loader: Any, *, val: Any = None, config: Any = None) -> Any:
    assert sum(len(y) for _, y in forget_loader) == 12
    assert sum(len(y) for _, y in retain_loader) == 244
    return BaselineResult(model, [], "at once", True, config, 0.0)


def asking(model: nn.Module, forget_loader: Any, importances: Any) -> Any:
    raise AssertionError("nobody has importances")


def failing(model: nn.Module, forget_loader: Any) -> Any:
    raise RuntimeError("out of luck")


def method(run: Any, *needs: str) -> Method:
    return Method("m", "M", run, Settings, frozenset(needs), "nobody")


def test_other_methods_are_timed_with_the_data_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {
        "m": method(unchanged, "forget", "retain"),
        "n": method(asking, "forget", "importances"),
        "o": method(failing, "forget"),
    }
    monkeypatch.setattr(side_by_side, "BASELINES", there)
    comparison = side_by_side.Comparison(toy("cpu"), Options(quick=True, repeats=1, slow_repeats=2))
    comparison.net = comparison.case.build().eval()
    comparison._others()
    assert len(comparison.rows["m"]["seconds"]) == 2
    assert comparison.rows["m"]["needs"] == ["forget", "retain"]
    assert comparison.left_out == {
        "n": "not run: nothing here to give it as importances",
        "o": "failed: RuntimeError: out of luck",
    }


def test_a_method_that_takes_too_long_is_cut_off_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(model: nn.Module, forget_loader: Any) -> NoReturn:
        for _ in range(500):
            time.sleep(0.01)
        raise AssertionError("it was not cut off")

    monkeypatch.setattr(side_by_side, "BASELINES", {"m": method(endless, "forget"), "n": method(unchanged, "forget")})
    comparison = side_by_side.Comparison(toy("cpu"), Options(quick=True, repeats=1, slow_repeats=1, limit=0.2))
    comparison.net = comparison.case.build().eval()
    before = signal.getsignal(signal.SIGALRM)
    comparison._others()
    assert comparison.left_out == {"m": "cut off after 0.2 s"}, "each repeat has its time"
    assert set(comparison.rows) == {"n"}
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_every_baseline_but_the_one_that_needs_its_own_training_is_timed(results: dict[str, Any]) -> None:
    toy_net = results["bench-side-by-side-cpu-quick.json"]["networks"]["toy"]
    assert set(BASELINES) - set(toy_net["ways"]) == {"sisa"}
    assert "title" not in toy_net["ways"]["retrain"], "the baseline of that name has taken the trainer's row"


@pytest.mark.parametrize("needs, given", [(("forget",), False), (("forget", "val"), True)])
def test_only_who_needs_validation_samples_gets_them(needs: tuple[str, ...], given: bool) -> None:
    seen = []

    def looking(model: nn.Module, forget_loader: Any, val: Any = None) -> None:
        seen.append(val is not None)

    case = toy("cpu")
    work = others.call_of(method(looking, *needs), others.supplies(case, case.build()))
    assert not isinstance(work, str)
    work()
    assert seen == [given]


def test_a_method_that_needs_what_a_default_hides_is_not_run() -> None:
    case = toy("cpu")
    why = others.call_of(method(unchanged, "forget", "trainer"), others.supplies(case, case.build()))
    assert why == "not run: it needs trainer"


def test_what_was_measured_before_an_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side.Comparison, "_plain", cut_short)
    with pytest.raises(KeyboardInterrupt):
        suite.run(["side-by-side"], Options(quick=True, repeats=1, slow_repeats=1), tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name == "bench-side-by-side-cpu-quick.unfinished.json"
    (network,) = json.loads(left.read_text())["networks"].values()
    assert {"fit", "request"} <= set(network["ways"])
    assert "plain fit" not in network["ways"]
