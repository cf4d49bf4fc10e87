"""What every method promises its caller: randomness of its own, clear words, and a result that is what it says."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import in_batches
from small import data, flat, linear
from small_worlds import batch, close, equal, forget_set, held_out, linear_net, normed_net, retain_set, tensors, weights
from test_baseline_all import TRAINED, short
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from unweave.baselines import BASELINES
from unweave.baselines.fine_tune import FineTuneConfig, fine_tune
from unweave.baselines.fisher import FisherConfig, fisher
from unweave.baselines.importances import importances
from unweave.baselines.last_layers import EUkConfig, eu_k
from unweave.baselines.ntk import NtkConfig, ntk
from unweave.baselines.preparation import seeded
from unweave.baselines.random_label import RandomLabelConfig, random_label
from unweave.baselines.retrain import RetrainConfig, retrain
from unweave.baselines.salun import SalUnConfig, salun
from unweave.baselines.scrub import ScrubConfig, scrub
from unweave.baselines.sisa import SISA, SisaConfig
from unweave.baselines.ssd import SsdConfig, ssd
from unweave.baselines.warnecke import FirstOrderConfig, SecondOrderConfig, first_order
from unweave.errors import DataError, MismatchError, ModelError
from unweave.reading.samples import Samples

CLOSED: dict[str, Any] = {
    "ntk": NtkConfig(samples=12),
    "fisher": FisherConfig(samples=12),
    "ssd": SsdConfig(alpha=1.1, batch_size=4),
    "first_order": FirstOrderConfig(tau=0.01),
    "second_order": SecondOrderConfig(scale=100.0, damping=0.01, batch_size=8),
}


def shuffled(count: int, seed: int, size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*batch(count, seed)), batch_size=size, shuffle=True)


# ----------------------------------------------------------------------------------------------------------- randomness


@pytest.mark.parametrize("name", [*TRAINED, *CLOSED])
def test_loaders_that_shuffle_take_no_random_numbers_of_the_user_and_depend_on_none(name: str) -> None:
    """Every pass over a DataLoader draws from PyTorch's generator, also where nothing is trained yet."""
    config = CLOSED[name] if name in CLOSED else short(name, **({"rewind": True} if name == "scrub" else {}))
    runs = []
    for drawn in (0, 5):
        torch.manual_seed(drawn)
        expected = torch.random.get_rng_state()
        forget, retain, val = shuffled(14, 1, 4), shuffled(30, 2, 9), shuffled(30, 3, 9)
        runs.append(BASELINES[name].run(normed_net_kept(), forget, retain, val, config).model)
        assert torch.equal(torch.random.get_rng_state(), expected)
    assert equal(tensors(runs[0]), tensors(runs[1]))


def normed_net_kept() -> nn.Module:
    """The same network without a look at the user's random numbers."""
    with torch.random.fork_rng():
        return normed_net()


def test_held_out_samples_from_a_dataloader_change_nothing() -> None:
    net, config = normed_net(), FineTuneConfig(epochs=3)
    net.insert(3, nn.Dropout(0.5))
    found = [fine_tune(net, None, shuffled(30, 2, 9), val, config).model for val in (None, shuffled(30, 3, 9))]
    assert equal(tensors(found[0]), tensors(found[1]))


def test_a_seed_reaches_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise AssertionError("every GPU was seeded, and only one is put back")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    with seeded(3, torch.device("cpu")):
        here = torch.rand(4)
    monkeypatch.undo()
    torch.manual_seed(3)
    assert torch.equal(here, torch.rand(4))


# ------------------------------------------------------------------------------------------------ what is said, and how


def test_one_sample_alone_under_batch_norm_is_refused_with_the_remedy() -> None:
    x, y = batch(7, 1)
    retain = [(x[:6], y[:6]), (x[6:], y[6:])]
    with pytest.raises(DataError, match=r"batch 1 of the retain loader: .*'1'.*drop_last=True.*norm='frozen'"):
        fine_tune(normed_net(), None, retain)
    assert fine_tune(normed_net(), None, retain, config=FineTuneConfig(epochs=1, norm="frozen")).ok
    assert fine_tune(linear_net(), None, retain, config=FineTuneConfig(epochs=1)).ok


def test_a_value_error_of_the_model_itself_is_not_blamed_on_the_batch() -> None:
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = normed_net()

        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("I do not like these")

    with pytest.raises(ModelError, match="I do not like these"):
        fine_tune(Choosy(), None, retain_set())


@pytest.mark.parametrize("name", ["random_label", "scrub", "neg_grad_plus", "salun"])
def test_an_empty_retain_loader_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="retain loader is empty"):
        BASELINES[name].run(linear_net(), forget_set(), [])


@pytest.mark.parametrize("name", [*TRAINED, *CLOSED])
def test_every_history_tells_the_held_out_error_by_the_same_name(name: str) -> None:
    config = CLOSED[name] if name in CLOSED else short(name)
    result = BASELINES[name].run(normed_net(), forget_set(), retain_set(), held_out(), config)
    assert all("val_error" in entry for entry in result.history)
    assert not any(" " in key for entry in result.history for key in entry)


@pytest.mark.parametrize("name", [n for n in [*TRAINED, *CLOSED] if BASELINES[n].needs & {"forget", "retain"}])
def test_what_is_missing_is_named_as_the_argument_is(name: str) -> None:
    method = BASELINES[name]
    for part in sorted({"forget", "retain"} & method.needs):
        given = {"forget": forget_set(), "retain": retain_set(), part: None}
        with pytest.raises(DataError, match=f"{name} needs the {part} set. Pass {part}_loader=."):
            method.run(normed_net(), given["forget"], given["retain"])


# ----------------------------------------------------------------------------------------------------------- arithmetic


def test_clipping_leaves_weight_decay_alone_with_a_mask_as_without_one() -> None:
    shared: dict[str, Any] = {"epochs": 2, "lr": 0.1, "weight_decay": 0.5, "clip": 0.01}
    how: dict[str, Any] = {"labels": "any", "drawn": "epoch", "order": "passes"}
    found = salun(normed_net(), forget_set(), retain_set(), config=SalUnConfig(**shared, share=1.0))
    config = RandomLabelConfig(**shared, **how, optimizer="sgd")
    assert close(
        tensors(found.model), tensors(random_label(normed_net(), forget_set(), retain_set(), config=config).model)
    )


def test_moving_weights_are_counted_exactly_in_any_dtype() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 143), nn.Tanh(), nn.Linear(143, 3)).bfloat16()
    loader = [(x.bfloat16(), y) for x, y in forget_set()]
    result = salun(net, loader, loader, config=SalUnConfig(epochs=1))
    assert result.extras["moving"] == sum(p.numel() for p in net.parameters()) // 2


@pytest.mark.parametrize("name", ["retrain", "eu_k"])
def test_weights_that_need_no_gradient_are_not_reset(name: str) -> None:
    """They would be random numbers that nobody trains."""
    net = normed_net()
    net[3].requires_grad_(False)
    net[4].bias.requires_grad_(False)
    config: Any = RetrainConfig(epochs=1) if name == "retrain" else EUkConfig(k=2, epochs=1)
    run: Any = retrain if name == "retrain" else eu_k
    found = run(net, None, retain_set(), config=config).model
    assert equal(weights(found[3]), weights(net[3]))
    assert torch.equal(found[4].bias, net[4].bias)
    assert not torch.equal(found[4].weight, net[4].weight)
    assert not torch.equal(found[6].weight, net[6].weight)


def test_a_frozen_norm_layer_keeps_the_statistics_it_starts_from() -> None:
    net = normed_net()
    net[4].requires_grad_(False)
    config = EUkConfig(k=2, epochs=1, norm="frozen")
    found = eu_k(net, None, retain_set(), config=config).model
    assert equal(tensors(found[4]), tensors(net[4]))


# ------------------------------------------------------------------------------------------------ steps that go too far


@pytest.mark.parametrize("steps", [1, 3])
def test_a_first_order_step_that_ruins_the_model_is_given_back(steps: int) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
    result = first_order(net, forget_set(), config=FirstOrderConfig(tau=1e200, layers=None, steps=steps))
    assert not result.ok
    assert "step 1" in result.stopped
    assert equal(tensors(result.model), tensors(net))
    assert len(result.history) == 1


def test_noise_that_ruins_the_model_is_given_back() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    retain = [(x.float(), y) for x, y in retain_set()]
    result = fisher(net, retain, retain, config=FisherConfig(alpha=1e27))
    assert not result.ok
    assert equal(tensors(result.model), tensors(net))


def test_scrub_says_that_the_epoch_it_rewinds_to_is_that_of_the_weights() -> None:
    config = ScrubConfig(epochs=3, rewind=True)
    result = scrub(normed_net(), forget_set(), retain_set(), held_out(), config)
    assert (
        result.history[result.extras["epoch"] - 1]["forget_error"]
        == result.extras["forget_errors"][result.extras["epoch"] - 1]
    )


# ------------------------------------------------------------------------------------------- models out of the ordinary


class Spare(nn.Module):
    """A parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.layer = nn.Parameter(torch.ones(2, dtype=torch.float64)), linear()

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        logits: Tensor = self.layer(x)
        return 2 * logits if twice else logits


@pytest.mark.parametrize("name", list(CLOSED))
def test_a_parameter_that_no_output_depends_on_does_no_harm(name: str) -> None:
    config = CLOSED[name]
    if name.endswith("order"):
        config = type(config)(**{**vars(config), "layers": None})
    result = BASELINES[name].run(Spare(), forget_set(), retain_set(), config=config)
    assert result.ok
    assert "fisher" in name or torch.equal(result.model.spare, torch.ones(2, dtype=torch.float64))


def test_inputs_that_are_no_tensors_are_refused_by_vmap_with_the_remedy() -> None:
    x, y = data(6)
    loader = [({"x": x, "twice": True}, y)]
    with pytest.raises(ModelError, match="batched=False"):
        fisher(Spare(), None, loader)
    assert fisher(Spare(), None, loader, config=FisherConfig(batched=False)).ok
    assert ntk(Spare(), loader, loader, config=NtkConfig(batched=False)).ok


def test_a_set_of_samples_is_held_once() -> None:
    x, y = data(8)
    batches = in_batches(x.clone(), y, 4)
    pieces = [batch[0].clone() for batch in batches]
    held = Samples([(piece, labels) for piece, (_, labels) in zip(pieces, batches, strict=True)])
    gone = [weakref.ref(piece) for piece in pieces]
    del pieces
    gc.collect()
    assert len(held) == 8
    assert all(ref() is None for ref in gone)


# ------------------------------------------------------------------------------------------------------------------ SSD


@pytest.mark.parametrize("size", [5, 40, 200])
def test_ssd_without_importances_mixes_the_forget_set_into_the_retained_one(size: int) -> None:
    """Batches of the forget set alone would make I_D ≥ I_f n_f / n, and with α ≥ n / n_f nothing were ever dampened."""
    net = linear()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, dtype=torch.float64, generator=generator)
    y = torch.zeros(200, dtype=torch.long)
    x[150:, 0] += 6
    y[150:] = 1
    config = SsdConfig(alpha=4, batch_size=20)
    forget, retain = in_batches(x[150:], y[150:], 10), in_batches(x[:150], y[:150], size)
    found = ssd(net, forget, retain, config=config)
    order = torch.randperm(200, generator=generator)
    mixed = ssd(net, forget, training=in_batches(x[order], y[order], 20), config=config)
    apart = ssd(net, forget, training=[*retain, *forget], config=config)
    assert found.extras["dampened"] > apart.extras["dampened"]
    assert abs(found.extras["dampened"] - mixed.extras["dampened"]) <= 1


def test_ssd_sees_every_sample_once() -> None:
    x, y = data(30)
    config = SsdConfig(alpha=0.5, batch_size=1)  # of one sample each, no order matters
    found = ssd(linear(), in_batches(x[:7], y[:7], 3), in_batches(x[7:], y[7:], 5), config=config)
    whole = importances(linear(), in_batches(x, y, 30), batch_size=1)
    same = ssd(linear(), in_batches(x[:7], y[:7], 3), config=config, importances=whole)
    assert torch.allclose(flat(found.model.parameters()), flat(same.model.parameters()), rtol=1e-12)


def test_ssd_needs_to_know_how_long_the_retained_set_is() -> None:
    class Endless:
        def __iter__(self) -> Any:
            yield batch(9, 1)

    with pytest.raises(DataError, match="length"):
        ssd(linear_net(), forget_set(), Endless())


# ----------------------------------------------------------------------------------------------------------------- SISA


def test_a_shard_started_again_is_bit_equal_whatever_mode_the_trainer_leaves_the_model_in(tmp_path: Path) -> None:
    """The mode, flags and attributes of a module are in no checkpoint, so no slice may inherit them from the last."""
    x, y = data(40)

    def train(net: nn.Module | None, ids: list[int], epochs: int, seed: int) -> nn.Module:
        if net is None:
            with seeded(seed, torch.device("cpu")):
                net = normed_net(seed).train()
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(epochs):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[ids]), y[ids]).backward()
            optimiser.step()
        return net.eval()

    config = SisaConfig(shards=1, slices=3, epochs=4)
    shards = SISA(tmp_path, normed_net().train(), config)
    shards.fit(range(40), train)
    shards.forget([shards.shards.shards[0][2].ids[0]], train)
    net = None
    for r, epochs in enumerate([2, 2, 2]):
        net = train(None if net is None else net.train(), shards.shards.seen(0, r), epochs, shards.seed(0, r))
    (found,) = shards.models()
    assert net is not None
    assert equal(tensors(found), tensors(net))


def test_a_template_that_does_not_fit_is_told_at_the_first_checkpoint(tmp_path: Path) -> None:
    calls = []

    def train(net: nn.Module | None, ids: list[int], epochs: int, seed: int) -> nn.Module:
        calls.append(ids)
        return linear()

    with pytest.raises(MismatchError, match="template"):
        SISA(tmp_path, linear(width=5), SisaConfig(shards=3, epochs=1)).fit(range(12), train)
    assert len(calls) == 1
