"""The loop: the optimiser's arithmetic, what moves and what does not, and what happens when values are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import TokenClassifier, in_batches, sentences
from small_worlds import (
    batch,
    close,
    cross_entropy,
    equal,
    forget_set,
    held_out,
    linear_net,
    normed_net,
    retain_set,
    tensors,
    weights,
)
from test_baseline_all import TRAINED
from torch import Tensor, nn

from unweave.baselines import BASELINES
from unweave.baselines.fine_tune import FineTuneConfig, fine_tune
from unweave.baselines.neg_grad import NegGradConfig, neg_grad
from unweave.baselines.scrub import ScrubConfig, scrub
from unweave.errors import ConfigError, DataError, ModelError
from unweave.reading.batches import Doubts


def by_hand(net: nn.Module, loader: Any, config: FineTuneConfig) -> dict[str, Tensor]:
    """SGD as it is written down: v ← μ v + g + λ w; w ← w − lr (g' + μ v with Nesterov, else v)."""
    values = [p.detach().clone() for p in net.parameters()]
    speed = [torch.zeros_like(v) for v in values]
    names = [name for name, _ in net.named_parameters()]
    for epoch in range(config.epochs):
        for i, (x, y) in enumerate(loader):
            rate = config.rate(epoch, i / len(loader))
            at = [v.clone().requires_grad_() for v in values]
            out = torch.func.functional_call(net, dict(zip(names, at, strict=True)), (x,))
            gradients = list(torch.autograd.grad(cross_entropy(out, y), at))
            if config.clip is not None:
                norm = torch.sqrt(sum((g**2).sum() for g in gradients))
                gradients = [g * min(1.0, float(config.clip / norm)) for g in gradients]
            for j, g in enumerate(gradients):
                g = g + config.weight_decay * values[j]
                speed[j] = config.momentum * speed[j] + g
                step = g + config.momentum * speed[j] if config.nesterov else speed[j]
                values[j] = values[j] - rate * step
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.0},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"schedule": "exponential", "lr_end": 0.01},
        {"schedule": "cosine", "momentum": 0.5},
        {"schedule": "one-cycle", "lr_end": 0.01},
        {"clip": 0.05},
    ],
    ids=str,
)
def test_sgd_is_what_is_written_down(settings: dict[str, Any]) -> None:
    net, config = linear_net(), FineTuneConfig(epochs=3, lr=0.2, **settings)
    found = weights(fine_tune(net, None, retain_set(), config=config).model)
    assert close(found, by_hand(net, retain_set(), config), 1e-6 if config.clip else 1e-11)


def test_adams_first_step_is_the_sign_of_the_gradient() -> None:
    net, (x, y) = linear_net(), batch(9, 1)
    gradients = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
    config = FineTuneConfig(epochs=1, lr=0.01, optimizer="adam")
    found = fine_tune(net, None, [(x, y)], config=config).model
    for new, old, g in zip(found.parameters(), net.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - 0.01 * g / (g.abs() + 1e-8), rtol=1e-9)


def test_the_history_has_an_entry_an_epoch() -> None:
    net, retain = linear_net(), retain_set()
    told: list[tuple[str, int, int | None]] = []
    result = fine_tune(net, None, retain, config=FineTuneConfig(epochs=2, lr=1e-9), progress=lambda *a: told.append(a))
    assert told == [("fine_tune", 1, 2), ("fine_tune", 2, 2)]
    assert [entry["epoch"] for entry in result.history] == [1, 2]
    mean = sum(cross_entropy(net(x), y).item() for x, y in retain) / len(retain)
    assert result.history[0]["retain_loss"] == pytest.approx(mean, rel=1e-6)
    assert result.ok
    assert result.stopped == "all 2 epochs done"
    assert "val_error" not in result.history[0]


def test_the_error_on_held_out_samples_is_in_the_history() -> None:
    net, val = linear_net(), held_out()
    result = fine_tune(net, None, retain_set(), val, FineTuneConfig(epochs=1, lr=1e-12))
    (x, y) = val[0]
    assert result.history[0]["val_error"] == pytest.approx(100 * float((net(x).argmax(1) != y).double().mean()))


def test_looking_at_held_out_samples_changes_nothing() -> None:
    config = FineTuneConfig(epochs=2)
    seen = fine_tune(normed_net(), None, retain_set(), held_out(), config)
    assert equal(tensors(seen.model), tensors(fine_tune(normed_net(), None, retain_set(), None, config).model))


def test_norm_layers_gather_statistics_or_not() -> None:
    net = normed_net()
    moved = fine_tune(net, None, retain_set(), config=FineTuneConfig(epochs=1)).model
    held = fine_tune(net, None, retain_set(), config=FineTuneConfig(epochs=1, norm="frozen")).model
    for norm in ("1", "4"):
        before, gathered, frozen = (m.get_submodule(norm) for m in (net, moved, held))
        assert not torch.equal(gathered.running_mean, before.running_mean)
        assert torch.equal(frozen.running_mean, before.running_mean)
        assert torch.equal(frozen.running_var, before.running_var)
        assert not torch.equal(frozen.weight, before.weight)


def test_frozen_norm_layers_use_their_running_statistics() -> None:
    """One step by hand, through the network in eval mode."""
    net, (x, y) = normed_net(), batch(9, 1)
    gradients = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
    config = FineTuneConfig(epochs=1, lr=0.1, norm="frozen")
    found = fine_tune(net, None, [(x, y)], config=config).model
    for new, old, g in zip(found.parameters(), net.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - 0.1 * g, rtol=1e-10, atol=1e-12)


def test_weights_that_need_no_gradient_stay_and_keep_their_flags() -> None:
    net = linear_net()
    net[0].requires_grad_(False)
    found = fine_tune(net, None, retain_set(), config=FineTuneConfig(epochs=1)).model
    assert torch.equal(found[0].weight, net[0].weight)
    assert not torch.equal(found[2].weight, net[2].weight)
    assert [p.requires_grad for p in found.parameters()] == [False, False, True, True]
    assert all(p.grad is None for p in found.parameters())


def test_the_new_model_is_in_eval_mode() -> None:
    assert not any(m.training for m in fine_tune(normed_net().train(), None, retain_set()).model.modules())


def test_it_runs_in_bfloat16_with_weights_as_they_were() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    loader = [(x.float(), y) for x, y in retain_set()]
    exact = fine_tune(net, None, loader, config=FineTuneConfig(epochs=1)).model
    rough = fine_tune(net, None, loader, config=FineTuneConfig(epochs=1, bf16=True)).model
    assert rough[0].weight.dtype == torch.float32
    assert not torch.equal(rough[0].weight, exact[0].weight)
    assert torch.allclose(rough[0].weight, exact[0].weight, atol=1e-2)


def test_a_generator_is_walked_over_every_epoch() -> None:
    config = FineTuneConfig(epochs=3)
    once = fine_tune(linear_net(), None, (b for b in retain_set()), config=config)
    assert equal(weights(once.model), weights(fine_tune(linear_net(), None, retain_set(), config=config).model))


def test_inputs_by_name() -> None:
    torch.manual_seed(0)
    net = TokenClassifier().double().eval()
    ids, labels = sentences(12)
    named = in_batches({"ids": ids, "src_key_padding_mask": torch.zeros(12, 4, dtype=torch.bool)}, labels, 6)
    for name in TRAINED:
        settings = {"k": 1} if name in ("eu_k", "cf_k") else {}
        config = BASELINES[name].config(epochs=1, **settings)
        assert BASELINES[name].run(net, named, named, config=config).ok, name


class TestDivergence:
    def test_the_last_finite_weights_are_kept(self) -> None:
        """The first epoch is harmless; in the second the products overflow."""
        net = linear_net()

        class Worse:
            epoch = 0

            def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
                self.epoch += 1
                x, y = batch(9, 1)
                yield (x if self.epoch == 1 else x * 1e306), y

        config = FineTuneConfig(epochs=3, lr=0.1)
        with torch.no_grad():
            net[0].weight.mul_(1e3)  # so that the products overflow where the inputs do not
        result = fine_tune(nn.Sequential(net[0], net[2]), None, Worse(), config=config)
        first = fine_tune(nn.Sequential(net[0], net[2]), None, [batch(9, 1)], config=FineTuneConfig(epochs=1, lr=0.1))
        assert not result.ok
        assert result.stopped == "values were not finite in epoch 2; kept those of epoch 1"
        assert len(result.history) == 1
        assert equal(weights(result.model), weights(first.model))

    def test_in_the_first_epoch_the_weights_are_those_passed_in(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
        result = neg_grad(net, forget_set(), config=NegGradConfig(epochs=5, lr=1e200))
        assert not result.ok
        assert result.history == []
        assert equal(tensors(result.model), tensors(net))
        assert not result.model.training

    def test_finite_weights_with_outputs_that_are_not(self) -> None:
        """One huge step, after which held-out samples overflow, though the weights do not."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
        result = neg_grad(net, [batch(6, 1)], val=held_out(), config=NegGradConfig(epochs=1, lr=1e200, weight_decay=0))
        assert not result.ok
        assert equal(tensors(result.model), tensors(net))

    def test_scrub_does_not_rewind_what_has_diverged(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
        result = scrub(net, forget_set(), retain_set(), held_out(), ScrubConfig(epochs=4, lr=1e200, rewind=True))
        assert not result.ok
        assert result.extras == {}
        assert all(p.isfinite().all() for p in result.model.parameters())


class TestRefusals:
    def test_one_cycle_needs_a_length(self) -> None:
        class Endless:
            def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
                yield batch(9, 1)

        config = FineTuneConfig(epochs=1, schedule="one-cycle")
        assert fine_tune(linear_net(), None, [batch(9, 1)], config=config).ok
        with pytest.raises(DataError, match="length"):
            fine_tune(linear_net(), None, Endless(), config=config)

    def test_settings_of_another_method(self) -> None:
        with pytest.raises(ConfigError, match="FineTuneConfig"):
            fine_tune(linear_net(), None, retain_set(), config=NegGradConfig())  # type: ignore[arg-type]

    def test_labels_that_are_no_classes(self) -> None:
        x, y = batch(9, 1)
        for name in ("fine_tune", "neg_grad", "delete", "random_label", "salun"):
            with pytest.raises(DataError, match="3 classes"):
                BASELINES[name].run(linear_net(), [(x, y + 1)], [(x, y + 1)])

    @pytest.mark.parametrize("scale, shift, message", [(1, 1, "In batch 0 .* 3 classes"), (1e999, 0, "NaN")])
    def test_what_a_gpu_is_asked_later_is_asked_by_the_end_of_the_epoch(
        self, scale: float, shift: int, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("unweave.baselines.training.Doubts", lambda later: Doubts(later=True))
        x, y = batch(9, 1)
        for name in ("fine_tune", "neg_grad_plus", "delete", "salun"):
            with pytest.raises(DataError, match=message):
                BASELINES[name].run(linear_net(), [(x * scale, y + shift)], [(x * scale, y + shift)])

    def test_inputs_that_are_not_finite(self) -> None:
        x, y = batch(9, 1)
        with pytest.raises(DataError, match="NaN"):
            fine_tune(linear_net(), None, [(x / 0, y)])

    def test_an_empty_loader(self) -> None:
        with pytest.raises(DataError, match="retain loader is empty"):
            fine_tune(linear_net(), None, [])

    def test_a_model_nothing_of_which_may_move(self) -> None:
        with pytest.raises(ModelError, match="requires_grad_"):
            fine_tune(linear_net().requires_grad_(False), None, retain_set())

    def test_a_model_that_is_not_finite(self) -> None:
        net = linear_net()
        with torch.no_grad():
            net[0].weight[0, 0] = float("nan")
        with pytest.raises(ModelError, match="NaN"):
            fine_tune(net, None, retain_set())
