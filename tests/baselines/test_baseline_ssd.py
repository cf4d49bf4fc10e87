from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import gap, images, sentences, small_cnn, state_of, token_classifier
from small import data, flat, linear, loader
from torch import Tensor, nn
from torch.nn import functional as F

from unweave.baselines.importances import Importances, importances, recut
from unweave.baselines.ssd import SsdConfig, dampening, ssd
from unweave.errors import ConfigError, DataError, MismatchError, ModelError, StoreError


def squared_gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return flat(torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))) ** 2


def test_importances_are_the_mean_of_squared_batch_gradients_whatever_the_loader_does() -> None:
    net = small_cnn().eval()
    x, y = images(12)
    expected = sum(squared_gradient(net, x[i : i + 4], y[i : i + 4]) for i in (0, 4, 8)) / 3
    for size in (1, 3, 4, 5, 12):
        found = importances(net, loader(x, y, size), batch_size=4)
        assert gap(flat(found.values.values()), expected) < 1e-12
        assert (found.samples, found.batch_size) == (12, 4)


def test_a_short_last_batch_counts_by_its_size_twice() -> None:
    net = small_cnn().eval()
    x, y = images(6)
    found = importances(net, loader(x, y, 6), batch_size=4)
    expected = (4 / 6) * squared_gradient(net, x[:4], y[:4]) + (2 / 6) * (2 / 4) * squared_gradient(net, x[4:], y[4:])
    assert gap(flat(found.values.values()), expected) < 1e-12


def test_the_scale_of_importances_does_not_depend_on_the_number_of_samples() -> None:
    net = linear(width=6)
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    x, y = data(3000, width=6, seed=3)
    many = flat(importances(net, loader(x, y, 500), batch_size=30).values.values())
    few = [
        flat(importances(net, loader(x[i : i + 10], y[i : i + 10]), batch_size=30).values.values())
        for i in range(0, 3000, 10)
    ]
    assert 0.8 < (torch.stack(few).mean() / many.mean()).item() < 1.25


def test_batches_of_varying_width_stay_as_they_are() -> None:
    batches = [(torch.zeros(2, 3), torch.zeros(2).long()), (torch.zeros(3, 5), torch.zeros(3).long())]
    assert sorted(len(y) for _, y in recut(batches, 4, torch.device("cpu"))) == [2, 3]


def test_the_dampening_by_hand() -> None:
    forget = torch.tensor([1.0, 30.0, 30.0, 5.0, 0.0, 3.0])
    whole = torch.tensor([1.0, 1.0, 2.0, 0.0, 0.0, 0.299])
    chosen, factor = dampening(forget, whole, SsdConfig(alpha=10, lam=1))
    assert chosen.tolist() == [False, True, True, True, False, True]
    assert factor.tolist() == pytest.approx([1, 1 / 30, 2 / 30, 0, 1, 0.299 / 3])
    _, factor = dampening(forget, whole, SsdConfig(alpha=10, lam=20))
    assert factor.tolist() == pytest.approx([1, 20 / 30, 1, 0, 1, 1])


def test_ssd_dampens_what_it_should_and_leaves_every_other_bit() -> None:
    net = small_cnn()
    x, y = images(20)
    before = state_of(net)
    config = SsdConfig(alpha=1.5, lam=0.5, batch_size=4)
    result = ssd(net, loader(x[:4], y[:4]), config=config, training=loader(x, y, 20))
    assert state_of(net) == before
    own = importances(net, loader(x[:4], y[:4]), batch_size=4).values
    whole = importances(net, loader(x, y), batch_size=4).values
    touched = 0
    for name, weight in net.named_parameters():
        new = dict(result.model.named_parameters())[name]
        chosen = own[name] > 1.5 * whole[name]
        assert torch.equal(new[~chosen], weight[~chosen])
        expected = weight * (0.5 * whole[name] / own[name]).clamp(max=1)
        assert torch.allclose(new[chosen], expected[chosen], rtol=1e-12)
        touched += int(chosen.sum())
    assert 0 < touched < result.extras["weights"]
    assert result.extras["dampened"] == touched
    assert not result.model.training
    assert torch.equal(result.model[1].running_mean, net[1].running_mean)


def test_kept_importances_give_the_same_model_from_the_forget_set_alone(tmp_path: Path) -> None:
    net = small_cnn()
    x, y = images(16)
    config = SsdConfig(alpha=1.2, batch_size=4)
    importances(net, loader(x, y), batch_size=4).save(tmp_path / "i.safetensors")
    kept = Importances.load(tmp_path / "i.safetensors")
    one = ssd(net, loader(x[:4], y[:4]), config=config, importances=kept)
    other = ssd(net, loader(x[:4], y[:4]), config=config, training=loader(x, y))
    assert torch.equal(flat(one.model.parameters()), flat(other.model.parameters()))
    assert one.extras["dampened"] > 0


def test_importances_of_another_model_batch_size_or_file_are_refused(tmp_path: Path) -> None:
    net, path = linear(), tmp_path / "i.safetensors"
    batches = loader(*data(6))
    kept = importances(net, batches, batch_size=4)
    with pytest.raises(MismatchError, match="belong to model"):
        ssd(linear(seed=1), batches, config=SsdConfig(batch_size=4), importances=kept)
    with pytest.raises(MismatchError, match="batch_size=4"):
        ssd(net, batches, importances=kept)
    with pytest.raises(MismatchError, match="lack 'bias'"):
        ssd(net, batches, config=SsdConfig(batch_size=4), importances=replace(kept, values={"weight": net.weight}))
    with pytest.raises(MismatchError, match="load"):
        ssd(net, batches, importances=str(path))  # type: ignore[arg-type]
    kept.save(path)
    blob = bytearray(path.read_bytes())
    blob[-3] ^= 1
    path.write_bytes(blob)
    with pytest.raises(StoreError, match="altered"):
        Importances.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(StoreError, match="damaged"):
        Importances.load(path)
    with pytest.raises(StoreError, match="Cannot read"):
        Importances.load(tmp_path / "none")


def test_what_is_missing_or_wrong_is_refused() -> None:
    net, batches = linear(), loader(*data(6))
    with pytest.raises(DataError, match="importances="):
        ssd(net, batches)
    for wrong in ({"alpha": -1}, {"lam": 0}, {"batch_size": 0}):
        with pytest.raises(ConfigError):
            SsdConfig(**wrong)
    with pytest.raises(ConfigError):
        importances(net, batches, batch_size=0)


def test_gradients_that_are_not_finite_are_refused() -> None:
    class Rooted(nn.Module):
        """The slope of a root at zero is infinite, though every output is finite."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3] * self.weight.sqrt()

    with pytest.raises(ModelError, match="gradients of 'weight'"):
        importances(Rooted(), loader(*data(6)))


def test_dict_inputs() -> None:
    net = token_classifier()
    ids, y = sentences(8)
    result = ssd(net, loader({"ids": ids[:2]}, y[:2]), loader({"ids": ids[2:]}, y[2:]), config=SsdConfig(batch_size=2))
    assert result.ok
