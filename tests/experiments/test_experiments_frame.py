"""What the experiments are made of: read-outs, loaders, tuning, layers that move, schedules, the paper's numbers."""

from __future__ import annotations

import argparse
import copy
import json
import re
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unweave
from experiments import class_smallvgg, data, table1, table2, table3
from experiments.data import Labelled
from experiments.documents import studies
from experiments.documents.many import rounded, thinned
from experiments.documents.paper_numbers import PAPER
from experiments.documents.summary import head, rests_on, spread
from experiments.epochs import SCHEDULED, settings_for
from experiments.incremental_long import dropped_after
from experiments.layers import ends_of
from experiments.pages import ROOT, page, with_summary
from experiments.reproduce import options_of
from experiments.running import readout
from experiments.running.jobs import Job
from experiments.running.readout import KEPT, compact, every_nth, glance, read_out
from experiments.running.sources import recipe_of
from experiments.running.training_sets import FULL
from experiments.running.turns import together
from experiments.running.work import Parts, Work
from experiments.settings import PAPER as FULL_SIZE
from experiments.settings import SMOKE, Case, first_classes, samples_of_class_0, step_alone, steps_of
from experiments.training.fast import Learning, Recipe, train_end
from experiments.training.loaders import Shuffled
from experiments.ways import last_layers, methods
from experiments.ways.requests import attack_networks
from experiments.ways.tuning import score
from unweave.baselines.importances import Importances, importances
from unweave.baselines.last_layers import moving_modules
from unweave.baselines.ntk import Linearised, linearise
from unweave.cli import reproduce as command
from unweave.cli.main import main
from unweave.cli.reproduce import add_options
from unweave.errors import ConfigError, StoreError
from unweave.reading.rest import fingerprint


class Echo(nn.Module):
    """Takes an image [3, 1, 1] for its three logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


def said(*classes: int) -> torch.Tensor:
    """Images that Echo takes for these classes; the second choice is the next class."""
    logits = torch.zeros(len(classes), 3)
    for row, c in enumerate(classes):
        logits[row, c], logits[row, (c + 1) % 3] = 2.0, 1.0
    return logits.reshape(-1, 3, 1, 1)


def parts() -> Parts:
    return Parts(
        forget=Labelled(said(0, 0, 1), torch.tensor([0, 0, 0])),
        retain=Labelled(said(0, 1, 2, 2), torch.tensor([1, 1, 2, 1])),
        val=Labelled(said(0, 1, 1, 2), torch.tensor([0, 0, 1, 1])),
        test=Labelled(said(0, 2, 1, 2), torch.tensor([0, 0, 1, 2])),
    )


def test_errors_by_hand_for_samples() -> None:
    case = Case("some", FULL_SIZE.allcnn, "samples", lambda labels: labels)
    errors, arrays = read_out(Echo(), case, parts())
    assert errors == pytest.approx(
        {"retained": 50, "forgotten": 100 / 3, "test": 25, "own": 50, "val": 50, "val own": 50}
    )
    assert arrays["forget"].shape == (3, 3)
    assert arrays["held_out_labels"].tolist() == [0, 0], "held-out samples of the forgotten class alone"
    assert glance(Echo(), case, parts()) == pytest.approx({k: errors[k] for k in ("forgotten", "val", "val own")})


def test_errors_by_hand_for_a_class_that_goes() -> None:
    case = first_classes(FULL_SIZE.smallvgg, 1)
    errors, _ = read_out(Echo(), case, parts())
    # Among classes 1 and 2, an image of class 0 counts for its second choice, class 1.
    assert errors["retained"] == pytest.approx(25)
    assert errors["retained test"] == 0
    assert errors["val"] == pytest.approx(50)
    assert errors["forgotten"] == pytest.approx(100 / 3)


def test_what_is_kept_is_spread_evenly() -> None:
    assert every_nth(torch.arange(10), 4).tolist() == [0, 3, 6, 9]
    assert every_nth(torch.arange(3), 4).tolist() == [0, 1, 2]


def test_outputs_and_labels_of_a_large_request_are_thinned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readout, "KEPT", 3)
    classes = [0, 1, 2, 0, 1, 2, 0]
    seen = Labelled(said(*classes), torch.tensor(classes))
    parts = Parts(seen, seen, seen, seen)
    _, arrays = read_out(Echo(), Case("all", SMOKE.smallvgg, "samples", lambda labels: labels), parts)
    assert arrays["forget_labels"].tolist() == arrays["forget"].argmax(1).tolist() == [0, 0, 0]
    assert arrays["held_out_labels"].tolist() == arrays["held_out"].argmax(1).tolist() == [0, 0, 0]


def test_networks_that_are_off_in_different_ways_are_off_though_their_mean_is_not() -> None:
    shares = {
        "retrained": np.array([[0.5, 0.3, 0.2], [0.5, 0.5, 0.0]]),
        "scattered": np.array([[1.0, 0.0, 0.0], [0.0, 0.8, 0.2]]),
    }
    found = class_smallvgg.distances(shares)
    assert found["distance to retrained"] == {"retrained": 0, "scattered": 0}
    assert found["distance of single networks"] == pytest.approx({"scattered": 0.5, "retrained": 0.2})
    alone = class_smallvgg.distances({"retrained": shares["retrained"][:1]})
    assert alone["distance of single networks"] == {}, "a single one has no other to be compared with"
    assert class_smallvgg.distances({"scattered": shares["scattered"]})["distance to retrained"] == {}


def test_a_step_of_table_3_is_also_asked_of_networks_by_all_of_the_papers_schedule(tmp_path: Path) -> None:
    names = {job.name for job in table3.jobs(Work(tmp_path, FULL_SIZE, torch.device("cpu")))}
    also = {name for name in names if name.startswith("smallvgg-cifar10-paper/")}
    kinds = ("original", "retrained", "pgu", "paper", "match")
    assert also == {f"smallvgg-cifar10-paper/first-100-a-class/{kind}/0" for kind in kinds}


def test_table_1_is_also_asked_of_networks_by_the_papers_schedule(tmp_path: Path) -> None:
    names = {job.name for job in table1.jobs(Work(tmp_path, FULL_SIZE, torch.device("cpu")))}
    for setting in ("allcnn-cifar10-paper", "allcnn-cifar10-text"):
        also = {name for name in names if name.startswith(f"{setting}/")}
        assert also == {f"{setting}/500-of-class-0/{kind}/0" for kind in ("original", "retrained", *table1.OURS)}


def test_a_shuffled_loader_shows_every_sample_once_and_in_another_order_each_time() -> None:
    data = Labelled(torch.arange(10.0).reshape(10, 1, 1, 1), torch.arange(10))
    loader = Shuffled(data, 4, seed=1)
    first, second = (torch.cat([y for _, y in loader]) for _ in range(2))
    assert len(loader) == 3
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(10))
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat([y for _, y in Shuffled(data, 4, seed=1)]))


def test_the_score_of_a_trial_is_the_distance_to_held_out_and_what_it_cost() -> None:
    before = {"val own": 8.0, "val": 10.0}
    samples = samples_of_class_0(FULL_SIZE)
    assert score(samples, {"forgotten": 5.0, "val": 11.5}, before) == pytest.approx(4.5)
    assert score(samples, {"forgotten": 9.0, "val": 9.0}, before) == pytest.approx(1.0), "a better network is no cost"
    classes = first_classes(FULL_SIZE.resnet18, 5)
    assert score(classes, {"forgotten": 90.0, "val": 12.0}, before) == pytest.approx(12.0)


def test_what_a_baseline_keeps_from_training_is_not_in_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this project's Grams are not: SSD's importances are made before, of batches that mix the classes."""
    work, case = Work(tmp_path, SMOKE, torch.device("cpu")), samples_of_class_0(SMOKE)
    order = list[int]()

    def noted(net: nn.Module, loader: Shuffled, *, batch_size: int) -> Importances:
        order.extend(torch.cat([y for _, y in loader]).tolist())
        return importances(net, loader, batch_size=batch_size)

    monkeypatch.setattr(methods, "importances", noted)
    outcome = methods.by_baseline(work, case, "ssd", 0, {})
    assert outcome.story["fit seconds"] > 0
    assert len(order) == len(work.data(case.setting).train)
    assert order != sorted(order)


def test_trials_of_ntk_share_what_a_network_is_linearised_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One network at a time: another one is linearised anew, and the time it took is part of every outcome's."""
    work, case = Work(tmp_path, SMOKE, torch.device("cpu")), samples_of_class_0(SMOKE)
    made = list[Linearised]()

    def noted(*given: Any) -> Linearised:
        made.append(linearise(*given))
        return made[-1]

    monkeypatch.setattr(methods, "linearise", noted)
    monkeypatch.setattr(Work, "timed", lambda self, do: (do(), 100.0))
    trials = (0, 0.1), (0, 100.0), (1, 0.1)  # seed, mu
    first, second, third = (methods.by_baseline(work, case, "ntk", seed, {"mu": mu}) for seed, mu in trials)
    assert [one.seconds for one in (first, second, third)] == [200.0] * 3
    assert len(made) == 2
    assert made[0].model == fingerprint(work.network(case.setting, FULL, 0)) != made[1].model
    assert fingerprint(first.net) != fingerprint(second.net), "another setting of the same network"


def test_outputs_are_kept_in_few_bytes_and_none_becomes_infinite() -> None:
    kept = compact(torch.tensor([[1e9, -1e9, 2.5]]))
    assert kept.dtype == np.float16
    assert kept.tolist() == [[65504, -65504, 2.5]]


def test_steps_add_up_to_what_was_forgotten_so_far() -> None:
    labels = torch.arange(10).repeat(30)
    so_far = steps_of(FULL_SIZE.smallvgg, 5, 3)[-1].chosen(labels)
    steps = torch.cat([step_alone(FULL_SIZE.smallvgg, 5, step).chosen(labels) for step in (1, 2, 3)])
    assert sorted(so_far.tolist()) == sorted(steps.tolist())
    assert len(set(steps.tolist())) == 150
    assert len(samples_of_class_0(FULL_SIZE).chosen(torch.zeros(700))) == 500


def test_layers_that_move_are_counted_from_the_end() -> None:
    smallvgg = ends_of(FULL_SIZE.smallvgg, blocks=False)
    assert [len(names) for names in smallvgg] == [1, 2, 3, 4, 5]
    assert smallvgg[0] == ["linear2"]
    blocks = ends_of(FULL_SIZE.resnet18, blocks=True)
    assert [len(names) for names in blocks] == [1, 6, 11, 16, 20, 21]
    assert blocks[0] == ["fc"]
    assert "layer4.0.downsample.0" in blocks[1]


def test_eu_k_trains_its_layers_as_the_network_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(tmp_path, replace(SMOKE, baseline_epochs=None), torch.device("cpu"))
    case = samples_of_class_0(work.scale)
    asked = list[Recipe]()

    def watched(recipe: Recipe, learning: Learning, data: Labelled, seed: int) -> nn.Module:
        asked.append(recipe)
        return train_end(recipe, learning, data, seed)

    monkeypatch.setattr(last_layers, "train_end", watched)
    original = work.network(case.setting, FULL, 0)
    before = copy.deepcopy(original.state_dict())
    outcome = last_layers.by_last_layers(work, case, 0, {"k": 1})
    last_layers.by_last_layers(work, case, 0, {"k": 1, "pace": 0.2})
    recipe = recipe_of(case.setting)
    assert [one.settings() for one in asked] == [recipe.settings(), replace(recipe, lr=0.2 * recipe.lr).settings()]
    with pytest.raises(ConfigError, match="Supported: k, pace"):
        last_layers.by_last_layers(work, case, 0, {"k": 1, "epochs": 5})
    assert all(torch.equal(value, before[name]) for name, value in original.state_dict().items()), "untouched"
    after = outcome.net.state_dict()
    moved = {name.rpartition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(moving_modules(original, 1)[0])
    assert outcome.story["ok"]


def test_fewer_epochs_follow_the_same_schedule() -> None:
    config = unweave.ForgetConfig.paper("smallvgg-cifar10")
    assert config.lr is not None
    assert config.lr_end is not None
    for epochs in (1, 12, 40):
        changed = settings_for(config, epochs)
        for epoch in range(epochs):
            whole = config.lr * (config.lr_end / config.lr) ** (epoch / SCHEDULED)
            short = config.lr * (changed["lr_end"] / config.lr) ** (epoch / changed["epochs"])
            assert short == pytest.approx(whole)


def test_a_document_counts_the_jobs_it_rests_on_alone(tmp_path: Path) -> None:
    """Experiments share requests: what another one made of them is not this one's."""
    work = Work(tmp_path, SMOKE, torch.device("cpu"))
    case = samples_of_class_0(SMOKE)
    for method, commit in (("pgu", "a"), ("pgu last=1", "b")):
        path = work.rows / f"{case.setting.name}/{case.name}/{method}/0.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"made_by": {"commit": commit}, "seconds": 2.0, "settings": {}, "result": {}}))
    found = head(work, "table1", [case], rests_on(case, ["original", "pgu"]))
    assert (found["made_by"], found["seconds"]) == ([{"commit": "a"}], 2.0)


def test_what_is_lost_by_epoch_is_lost_by_the_same_networks() -> None:
    """A seed of which only the original is there must not count."""
    errors = {"retained": spread([1.0, 9.0]), "test": spread([10.0, 30.0]), "forgotten": spread([0.0, 0.0])}
    after = {"retained": spread([1.25]), "test": spread([9.999]), "forgotten": spread([50.0])}
    row = {"title": "", "seconds": None}
    methods = {
        "original": {**row, "seeds": [0, 3], "errors": errors},
        "pgu epochs=5": {**row, "seeds": [0], "errors": after},
    }
    taken = {"original": 0, "pgu epochs=5": 4}  # the schedule's first epoch takes no step
    network = {"request": {"network": "net"}, "epochs": taken, "methods": methods, "attacks": {}}
    made = {"scale": "paper", "made_by": [], "seconds": 1.0}
    text = studies.epochs({**made, "networks": {"smallvgg": network}})
    assert "| 4 | 1 | +0.25 | +0.00 | 50.00 |" in text


def test_jobs_that_run_at_once_differ_in_their_seeds_and_wait_for_tuning() -> None:
    names = ["a/m/0", "a/n/0", "a/search/original", "a/search/n-0", "a/search/m-0", "a/search/n-1", "a/m/1"]
    groups = [[job.name for job in group] for group in together([Job(name, dict) for name in names])]
    first = [["a/search/original"], ["a/search/n-0", "a/search/m-0"], ["a/search/n-1"]]
    assert groups == [*first, ["a/m/0", "a/m/1"], ["a/n/0"]]


def test_where_a_curve_drops() -> None:
    assert dropped_after([90.0, 89.5, 88.1, 87.9, 89.0], 25) == 75
    assert dropped_after([90.0, 89.5], 25) is None


def test_numbers_are_summed_up_as_a_sample() -> None:
    assert spread([1.0, 3.0]) == {"mean": 2.0, "std": 1.4142, "values": [1.0, 3.0]}
    assert spread([1.0])["std"] == 0
    assert rounded({"a": [0.123456, 2]}) == {"a": [0.1235, 2]}
    curve = np.linspace(0, 1, 200).tolist()
    assert len(thinned(curve)) == 60
    assert [thinned(curve)[i] for i in (0, -1)] == [0.0, 1.0]


def test_the_papers_tables_are_rectangular() -> None:
    for name in ("table4", "table4-tiny"):
        assert {len(row) for row in PAPER[name]["rows"].values()} == {len(PAPER[name]["budgets"])}
    for rows in PAPER["table3"]["rows"].values():
        assert {len(values) for values in rows.values()} == {4}
    gammas = {float(value) for value in PAPER["gamma"]["rows"]}
    assert gammas == set(FULL_SIZE.gammas)
    assert FULL_SIZE.budgets == PAPER["table4"]["budgets"]
    assert FULL_SIZE.budgets_tiny == PAPER["table4-tiny"]["budgets"]
    assert PAPER["table1"]["rows"]["retrained"]["seconds"][0] / PAPER["table1"]["rows"]["pgu"]["seconds"][0] > 11.5


def test_the_committed_pages_are_what_the_results_give() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert page(text) == text, "run python -m experiments.pages"
    assert text.count("<!-- results/") == 11
    readme = (ROOT / "README.md").read_text("utf-8")
    assert with_summary(readme) == readme, "run python -m experiments.pages"
    assert "<!-- reproduction -->" in readme
    for figure in set(re.findall(r"\]\((figures/[\w-]+\.svg)\)", text)):
        assert (ROOT / "docs" / figure).exists(), "run python -m experiments.pages"


def test_every_result_says_how_it_came_about() -> None:
    text = (ROOT / "results" / "README.md").read_text("utf-8").replace("\\", "")
    headings = " ".join(line for line in text.splitlines() if line.startswith("## "))
    told = re.findall(r"[\w*-]+\.json", headings)
    kept = [path.name for path in (ROOT / "results").glob("*.json") if not path.stem.endswith("-quick")]
    assert kept
    assert [name for name in kept if not any(fnmatch(name, pattern) for pattern in told)] == []


@pytest.mark.parametrize(("name", "flag"), [("gamma", "--cifar10"), ("table4-tiny", "--tinyimagenet")])
def test_missing_data_ask_for_the_flag_that_names_them(
    name: str, flag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNWEAVE_DATA", str(tmp_path / "cache"))
    assert main(["reproduce", name, "--device", "cpu", "--out", str(tmp_path / "out")]) == 1
    assert f"with --data (unweave bench: {flag}, Python: source=)" in capsys.readouterr().err


def test_the_flag_that_missing_data_ask_for_gets_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNWEAVE_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "get", lambda url, target, expected: pytest.fail("not asked for"))
    words = ["reproduce", "gamma", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    assert "unweave reproduce --download" in capsys.readouterr().err
    assert main([*words, "--data", str(tmp_path / "nowhere")]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
    asked = list[str]()

    def get(url: str, target: Path, expected: str) -> Path:
        asked.append(url)
        raise StoreError("no network")

    monkeypatch.setattr(data, "get", get)
    assert main([*words, "--download"]) == 1
    assert asked == [data.KNOWN["cifar10"].url]


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["reproduce", "table9", "--out", str(tmp_path)]) == 2
    assert "table9" in capsys.readouterr().err
    assert main(["reproduce", "table1", "--seeds", "0", "--out", str(tmp_path)]) == 2
    assert "--seeds 0" in capsys.readouterr().err


def test_outside_of_a_checkout_the_command_says_where_experiments_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command.unweave, "__file__", str(tmp_path / "lib" / "site" / "unweave" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="Clone the repository"):
        command._experiments()


@pytest.mark.parametrize("hard", range(4))
def test_how_hard_a_steps_samples_are_is_told_of_those_samples(
    hard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, FULL_SIZE, torch.device("cpu"))
    last, labels = table3.cases(work)[-1], torch.arange(10).repeat_interleave(500)  # five hundred of every class …
    chosen = last.chosen(labels)
    of_class = chosen % 500 // 100  # … of which the first four are asked for, one after the other
    said = torch.where(of_class == hard, labels[chosen] + 1, labels[chosen]) % 10
    logits = torch.nn.functional.one_hot(said, 10).float()
    arrays = {"forget": every_nth(logits, KEPT).numpy(), "forget_labels": every_nth(labels[chosen], KEPT).numpy()}
    monkeypatch.setattr(Work, "seeds_of", lambda self, prefix: [0, 1])
    monkeypatch.setattr(Work, "arrays", lambda self, name: arrays)
    found = [(each["mean"], len(each["values"])) for each in table3.how_hard(work, last)]
    assert found == [(100.0 * (number == hard), 2) for number in range(4)]


@pytest.mark.parametrize(
    ("words", "full", "retrained"),
    [([], 14, 12), (["--models", "20"], 22, 20), (["--models", "50"], 50, 50), (["--seeds", "3"], 12, 12)],
)
def test_the_attacks_have_as_many_networks_as_are_asked_for(words: list[str], full: int, retrained: int) -> None:
    """And of full ones so many more that every seed's unlearned network can be on trial."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    work = Work(Path("unused"), options_of(parser.parse_args(words)).scale, torch.device("cpu"))
    for made, case in ((table2.jobs(work), "first-5-classes"), (table3.jobs(work), "first-400-a-class")):
        names = [job.name.split("/")[1:] for job in made]
        seeds = {kind: sorted(int(n[2]) for n in names if n[:2] == [case, kind]) for kind in ("original", "retrained")}
        assert seeds == {"original": list(range(full)), "retrained": list(range(retrained))}


def test_two_networks_a_kind_are_no_attack_and_no_error() -> None:
    work = Work(Path("unused"), replace(FULL_SIZE, seeds=2, fewer_models=2), torch.device("cpu"))
    assert attack_networks(work, samples_of_class_0(FULL_SIZE)) == []
