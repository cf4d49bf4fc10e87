"""A training that was interrupted goes on where it was, and ends where it would have ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.data import Labelled
from experiments.running.training_sets import FULL
from experiments.running.work import Work
from experiments.settings import SMOKE
from experiments.training import fast as fast_training
from experiments.training import halfway
from experiments.training.fast import Recipe, train_many
from experiments.training.halfway import Halfway
from experiments.training.optimisers import buffers_of, forget_steps, optimiser_of, put_back
from unweave.errors import ConfigError, MismatchError

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def net_with_everything() -> nn.Module:
    """Weights, statistics and dropout."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


RECIPE = Recipe("small", net_with_everything, epochs=4, lr=0.1, batch_size=8, weight_decay=1e-3, padding=1)
STEPS = 4 * (30 // 8)
EVERY_KIND = pytest.mark.parametrize(
    "change",
    [{}, {"schedule": "exponential", "lr_end": 0.01}, {"optimiser": "adam", "lr": 0.01}],
    ids=["one cycle", "exponential", "adam"],
)


def images(n: int = 30, device: str = "cpu") -> Labelled:
    x = torch.randn(n, 3, 2, 2, generator=torch.Generator().manual_seed(n))
    return Labelled(x.to(device), (torch.arange(n) % 3).to(device))


def places(folder: Path, count: int = 2, **about: str) -> list[Halfway]:
    return [Halfway(folder / f"{i}.halfway", about) for i in range(count)]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[int]]:
    """From a number of steps (None: never) to the list of those that are taken from then on."""
    step = fast_training._Run.step

    def set_up(last: int | None) -> list[int]:
        taken = list[int]()

        def interrupted(self: fast_training._Run, i: int) -> None:
            if last is not None and len(taken) == last:
                raise KeyboardInterrupt
            taken.append(i)
            step(self, i)

        monkeypatch.setattr(fast_training._Run, "step", interrupted)
        return taken

    return set_up


@EVERY_KIND
def test_what_goes_on_ends_as_if_nothing_had_happened(
    change: dict[str, str | float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], list[int]],
) -> None:
    recipe = dataclasses.replace(RECIPE, **change)
    whole = train_many(recipe, images(), [1, 2])
    monkeypatch.setattr(halfway, "EVERY", -1.0)  # after every turn
    interrupt_after(11)
    with pytest.raises(KeyboardInterrupt):
        train_many(recipe, images(), [1, 2], places(tmp_path))
    taken = interrupt_after(None)
    found = train_many(recipe, images(), [1, 2], places(tmp_path))
    assert taken == [i for i in range(5, STEPS) for _ in range(2)], "the sixth turn was not done"
    assert all(same(a, b) for a, b in zip(found, whole, strict=True))


def test_networks_may_be_at_different_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupt_after: Callable[[int | None], list[int]]
) -> None:
    monkeypatch.setattr(halfway, "EVERY", -1.0)
    interrupt_after(7)
    with pytest.raises(KeyboardInterrupt):
        train_many(RECIPE, images(), [2], places(tmp_path)[1:])
    interrupt_after(None)
    found = train_many(RECIPE, images(), [1, 2], places(tmp_path))
    assert all(same(a, b) for a, b in zip(found, train_many(RECIPE, images(), [1, 2]), strict=True))


@EVERY_KIND
def test_what_warmed_up_is_forgotten_and_what_is_put_back_is_all(change: dict[str, str | float]) -> None:
    recipe, cpu = dataclasses.replace(RECIPE, **change), torch.device("cpu")

    def weights() -> list[nn.Parameter]:
        return [nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3)), nn.Parameter(torch.tensor(0.5))]

    def steps(optimiser: torch.optim.Optimizer, of: list[nn.Parameter], slopes: list[float]) -> None:
        for slope in slopes:
            for weight in of:
                weight.grad = torch.full_like(weight, slope)
            optimiser.step()

    through, begun, later = weights(), weights(), weights()
    first, second, third = (optimiser_of(recipe, some, cpu) for some in (through, begun, later))
    steps(second, begun, [5.0, -3.0])
    forget_steps(second)
    for weight, start in zip(begun, weights(), strict=True):
        weight.data.copy_(start)
    steps(first, through, [1.0, 2.0, -1.0])
    steps(second, begun, [1.0, 2.0])
    put_back(third, later, buffers_of(second, begun))
    for weight, start in zip(later, begun, strict=True):
        weight.data.copy_(start)
    for optimiser, some in ((second, begun), (third, later)):
        steps(optimiser, some, [-1.0])
        assert all(torch.equal(a, b) for a, b in zip(through, some, strict=True))


def test_progress_under_other_names_is_not_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was kept before optimisers could be others than SGD."""
    place = Halfway(tmp_path / "0.halfway", {"recipe": "one"})
    monkeypatch.setattr(halfway, "FORMAT", {})
    place.keep({"momentum.0": torch.ones(2)})
    assert place.there()
    monkeypatch.undo()
    assert not place.there()


def test_a_short_training_keeps_nothing(tmp_path: Path) -> None:
    train_many(RECIPE, images(), [1, 2], places(tmp_path))
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="1 places for 2 seeds"):
        train_many(RECIPE, images(), [1, 2], places(tmp_path, 1))


def test_progress_of_other_settings_or_half_a_file_is_not_gone_on_from(tmp_path: Path) -> None:
    place = Halfway(tmp_path / "a" / "0.halfway", {"recipe": "one"})
    assert place.state() is None
    place.keep({"x": torch.ones(2)})
    state = place.state()
    assert state is not None
    assert torch.equal(state["x"], torch.ones(2))
    assert Halfway(place.path, {"recipe": "another"}).state() is None
    place.path.write_bytes(place.path.read_bytes()[:20])
    assert place.state() is None
    place.drop()
    place.drop()
    assert not place.path.exists()


def test_progress_of_a_longer_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupt_after: Callable[[int | None], list[int]]
) -> None:
    monkeypatch.setattr(halfway, "EVERY", -1.0)
    interrupt_after(11)
    with pytest.raises(KeyboardInterrupt):
        train_many(RECIPE, images(), [1], places(tmp_path, 1))
    interrupt_after(None)
    with pytest.raises(MismatchError, match="has 11 steps, the training 4: it is of other data"):
        train_many(RECIPE, images(8), [1], places(tmp_path, 1))


def test_only_networks_that_are_not_there_are_half_trained(tmp_path: Path) -> None:
    folder = tmp_path / "weights" / "a" / "all"
    folder.mkdir(parents=True)
    for name in (".0.halfway", ".1.halfway", "1.safetensors"):
        (folder / name).touch()
    assert Work(tmp_path, SMOKE, torch.device("cpu")).half_trained() == 1


def test_an_experiment_goes_on_with_its_network_and_does_not_tell_its_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupt_after: Callable[[int | None], list[int]]
) -> None:
    def work(folder: str) -> Work:
        return Work(tmp_path / folder, SMOKE, torch.device("cpu"))

    whole = work("whole").network(SMOKE.smallvgg, FULL, 0)
    assert work("whole").seconds_to_train(SMOKE.smallvgg, FULL, 0) is not None
    monkeypatch.setattr(halfway, "EVERY", -1.0)
    interrupt_after(3)
    with pytest.raises(KeyboardInterrupt):
        work("cut").network(SMOKE.smallvgg, FULL, 0)
    kept = tmp_path / "cut" / "weights" / SMOKE.smallvgg.name / FULL.name / ".0.halfway"
    assert kept.exists()
    taken = interrupt_after(None)
    assert same(work("cut").network(SMOKE.smallvgg, FULL, 0), whole)
    assert taken[0] == 3
    assert not kept.exists()
    assert work("cut").seconds_to_train(SMOKE.smallvgg, FULL, 0) is None


@CUDA
@EVERY_KIND
def test_captured_trainings_go_on_from_where_the_user_interrupted(
    change: dict[str, str | float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interrupt_after: Callable[[int | None], list[int]],
) -> None:
    recipe, data = dataclasses.replace(RECIPE, **change), images(30, "cuda")
    whole = train_many(recipe, data, [1, 2])
    interrupt_after(11)
    with pytest.raises(KeyboardInterrupt):
        train_many(recipe, data, [1, 2], places(tmp_path))
    kept = [place.state() for place in places(tmp_path)]
    go_on_from = fast_training._Run.go_on_from
    found_there = list[dict[str, torch.Tensor]]()

    def watched(self: fast_training._Run, state: Mapping[str, torch.Tensor]) -> None:
        go_on_from(self, state)
        found_there.append({name: value.cpu() for name, value in self.state().items()})

    monkeypatch.setattr(fast_training._Run, "go_on_from", watched)
    taken = interrupt_after(None)
    found = train_many(recipe, data, [1, 2], places(tmp_path))
    for before, after in zip(kept, found_there, strict=True):
        assert before is not None
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after[name]) for name, value in before.items()), "to the last bit"
    assert taken == [5, *(i for i in range(6, STEPS) for _ in range(2))], "the first had taken its sixth step"
    for a, b in zip(found, whole, strict=True):
        for x, y in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(x, y, rtol=0.05, atol=0.02)
