"""What defines each method: a step by hand, a fixed point, or what it must leave alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import in_batches, sentences, small_cnn, token_classifier
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
    stepped,
    tensors,
    weights,
)
from torch import Tensor, nn

from unweave.baselines.delete import DeleteConfig, delete, masked_distance
from unweave.baselines.fine_tune import FineTuneConfig, fine_tune
from unweave.baselines.last_layers import CFkConfig, EUkConfig, cf_k, eu_k, moving_modules
from unweave.baselines.neg_grad import NegGradConfig, NegGradPlusConfig, neg_grad, neg_grad_plus
from unweave.baselines.random_label import RandomLabelConfig, draw, random_label
from unweave.baselines.retrain import RetrainConfig, retrain
from unweave.baselines.salun import SalUnConfig, saliency_masks, salun
from unweave.baselines.scrub import ScrubConfig, _losses, _Rewind, kl_at, scrub
from unweave.baselines.training import Training
from unweave.errors import ConfigError, DataError, ModelError

PLAIN: dict[str, Any] = {"epochs": 1, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}


class Untouchable:
    """A loader that must not be looked at."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("looked at")


# ------------------------------------------------------------------------------------------------------- retrain


class TestRetrain:
    def test_it_does_not_depend_on_the_weights_passed_in(self) -> None:
        one, two = normed_net(seed=1), normed_net(seed=2)
        config = RetrainConfig(epochs=2)
        found = [retrain(net, Untouchable(), retain_set(), config=config).model for net in (one, two)]
        assert equal(tensors(found[0]), tensors(found[1]))
        other = retrain(one, None, retain_set(), config=RetrainConfig(epochs=2, seed=1)).model
        assert not equal(tensors(other), tensors(found[0]))

    def test_a_network_of_ones_own(self) -> None:
        found = retrain(
            normed_net(), None, retain_set(), config=RetrainConfig(epochs=2, seed=5), build=lambda: normed_net(seed=9)
        ).model
        same = fine_tune(
            normed_net(seed=9), None, retain_set(), config=FineTuneConfig(**vars(RetrainConfig(epochs=2, seed=5)))
        ).model
        assert equal(tensors(found), tensors(same))

    def test_with_build_the_model_passed_in_may_be_frozen(self) -> None:
        net = linear_net().requires_grad_(False)
        config = RetrainConfig(epochs=1)
        assert retrain(net, None, retain_set(), config=config, build=lambda: linear_net(seed=1)).ok
        with pytest.raises(ModelError, match="requires_grad_"):
            retrain(net, None, retain_set(), config=config)

    def test_build_is_seeded(self) -> None:
        def build() -> nn.Module:
            return nn.Linear(4, 3).double()

        config = RetrainConfig(epochs=1)
        found = [retrain(build(), None, retain_set(), config=config, build=build).model for _ in range(2)]
        assert equal(weights(found[0]), weights(found[1]))

    def test_build_must_not_return_what_was_passed(self) -> None:
        net = linear_net()
        with pytest.raises(ModelError, match="builds a new one"):
            retrain(net, None, retain_set(), build=lambda: net)

    def test_attention_and_embeddings_start_afresh(self) -> None:
        ids, labels = sentences(12)
        loader, config = in_batches(ids, labels, 6), RetrainConfig(epochs=1)
        found = [retrain(token_classifier(seed=s), None, loader, config=config).model for s in (0, 1)]
        assert equal(tensors(found[0]), tensors(found[1]))

    @pytest.mark.filterwarnings("ignore::FutureWarning")
    @pytest.mark.parametrize("computed", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
    def test_a_weight_that_no_reset_reaches_is_refused(self, computed: Any) -> None:
        net = nn.Sequential(computed(nn.Linear(4, 3)))
        with torch.no_grad():
            net(torch.zeros(1, 4))  # the older kind can be copied only after a run without gradients
        with pytest.raises(ModelError, match="build="):
            retrain(net, None, [(x.float(), y) for x, y in retain_set()])

    def test_a_parameter_of_its_own_is_refused(self) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x * self.scale)

        with pytest.raises(ModelError, match="scale"):
            retrain(Scaled().double(), None, retain_set())


# ----------------------------------------------------------------------------------------------------- EU-k and CF-k


class TestLastLayers:
    @pytest.mark.parametrize("method, config", [(eu_k, EUkConfig), (cf_k, CFkConfig)])
    def test_everything_in_front_keeps_every_bit(self, method: Any, config: Any) -> None:
        net = normed_net()
        result = method(net, Untouchable(), retain_set(), config=config(k=2, epochs=2))
        before, after = tensors(net), tensors(result.model)
        for name in before:
            frozen = name.split(".")[0] in ("0", "1")
            assert torch.equal(before[name], after[name]) == frozen, name
        assert result.extras["layers"] == ["3", "6"]
        assert all(p.requires_grad for p in result.model.parameters())

    def test_cf_k_with_all_layers_is_fine_tuning(self) -> None:
        config = CFkConfig(k=3, epochs=3)
        recipe = {name: value for name, value in vars(config).items() if name != "k"}
        same = fine_tune(normed_net(), None, retain_set(), config=FineTuneConfig(**recipe)).model
        assert equal(tensors(cf_k(normed_net(), None, retain_set(), config=config).model), tensors(same))

    def test_eu_k_keeps_nothing_of_the_layers_it_resets(self) -> None:
        """Two networks that differ in the last layers and their norm only, statistics included, end up the same."""
        one, two = normed_net(), normed_net()
        with torch.no_grad():
            for place in (3, 4, 6):
                for value in two[place].state_dict().values():
                    value.copy_(value * 3 + 1) if value.is_floating_point() else value.fill_(7)
        config = EUkConfig(k=2, epochs=2)
        found = [eu_k(net, None, retain_set(), config=config).model for net in (one, two)]
        assert equal(tensors(found[0]), tensors(found[1]))
        assert int(found[0][4].num_batches_tracked) == 2 * len(retain_set())

    def test_frozen_norm_layers_use_their_running_statistics(self) -> None:
        """One step by hand: the front in eval mode, the rest in train mode."""
        net, (x, y) = normed_net(), batch(9, 1)
        front, rest = net[:3].eval(), net[3:].train()
        gradients = torch.autograd.grad(cross_entropy(rest(front(x)), y), list(rest.parameters()))
        expected = [p.detach() - 0.1 * g for p, g in zip(rest.parameters(), gradients, strict=True)]
        config = CFkConfig(k=2, **PLAIN, schedule="constant", clip=None, lr_end=None)
        found = cf_k(normed_net(), None, [(x, y)], config=config).model
        for new, wanted in zip(found[3:].parameters(), expected, strict=True):
            assert torch.allclose(new, wanted, rtol=1e-10, atol=1e-12)

    def test_dropout_in_front_stays_on(self) -> None:
        net = small_cnn().eval()
        x, y = torch.randn(6, 2, 5, 5, dtype=torch.float64), torch.arange(6) % 3
        config = CFkConfig(k=1, epochs=1)
        found = [cf_k(net, None, [(x, y)], config=CFkConfig(k=1, epochs=1, seed=s)).model for s in (0, 1)]
        assert not equal(tensors(found[0]), tensors(found[1]))
        assert torch.equal(found[0][1].running_mean, net[1].running_mean)
        assert equal(tensors(found[0]), tensors(cf_k(net, None, [(x, y)], config=config).model))

    def test_a_buffer_of_the_root_freezes_nothing(self) -> None:
        net = normed_net()
        net.register_buffer("mean", torch.zeros(4, dtype=torch.float64))
        result = cf_k(net, None, retain_set(), config=CFkConfig(k=1, epochs=1))
        assert not torch.equal(result.model[6].weight, net[6].weight)
        moved = cf_k(net, None, retain_set(), config=CFkConfig(k=2, epochs=1)).model
        assert not torch.equal(moved[4].running_mean, net[4].running_mean)

    def test_dropout_of_a_container_with_a_buffer_stays_on(self) -> None:
        class Dropping(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = linear_net()
                self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

            def forward(self, x: Tensor) -> Tensor:
                return self.net(nn.functional.dropout(x - self.mean, 0.5, self.training))

        configs = [CFkConfig(k=1, epochs=1, seed=s) for s in (0, 1)]
        found = [cf_k(Dropping().eval(), None, retain_set(), config=config).model for config in configs]
        assert not equal(tensors(found[0]), tensors(found[1]))

    def test_more_layers_than_there_are(self) -> None:
        assert moving_modules(normed_net(), 3)[0] == ["0", "3", "6"]
        with pytest.raises(ConfigError, match="1 to 3"):
            eu_k(normed_net(), None, retain_set(), config=EUkConfig(k=4))


# ---------------------------------------------------------------------------------------------------------- NegGrad


class TestNegGrad:
    def test_one_step_by_hand(self) -> None:
        net, (x, y) = linear_net(), batch(6, 1)
        found = neg_grad(net, [(x, y)], Untouchable(), config=NegGradConfig(**PLAIN)).model
        assert close(weights(found), stepped(net, lambda n: -cross_entropy(n(x), y), 0.1))

    def test_plus_one_step_by_hand(self) -> None:
        net, (x, y), (u, v) = linear_net(), batch(9, 1), batch(6, 2)
        found = neg_grad_plus(net, [(u, v)], [(x, y)], config=NegGradPlusConfig(**PLAIN, a=0.7)).model
        hand = stepped(net, lambda n: 0.7 * cross_entropy(n(x), y) - 0.3 * cross_entropy(n(u), v), 0.1)
        assert close(weights(found), hand)

    def test_plus_starts_the_forget_loader_anew_when_it_ends(self) -> None:
        class Counted:
            begun = 0

            def __iter__(self) -> Iterator[Any]:
                self.begun += 1
                yield from forget_set(batches=2)

        forget = Counted()
        result = neg_grad_plus(linear_net(), forget, retain_set(3), config=NegGradPlusConfig(epochs=2))
        assert result.ok
        assert forget.begun == 3  # six steps, two batches a pass

    def test_plus_with_a_of_one_is_fine_tuning(self) -> None:
        settings = {**PLAIN, "epochs": 2}
        found = neg_grad_plus(linear_net(), forget_set(), retain_set(), config=NegGradPlusConfig(**settings, a=1.0))
        same = fine_tune(linear_net(), None, retain_set(), config=FineTuneConfig(**settings))
        assert close(weights(found.model), weights(same.model))


# ----------------------------------------------------------------------------------------------------- random labels


class TestRandomLabel:
    def test_wrong_labels_are_never_true_and_any_labels_sometimes(self) -> None:
        labels, generator = torch.arange(5).repeat(400), torch.Generator().manual_seed(0)
        wrong, free = (draw(labels, 5, how, generator) for how in ("wrong", "any"))
        assert not (wrong == labels).any()
        for c in range(5):
            found = torch.bincount(wrong[labels == c], minlength=5)
            assert found[c] == 0
            assert (found[torch.arange(5) != c] > 70).all()  # 100 each, ± 9
        assert 300 < int((free == labels).sum()) < 500  # 400 ± 18
        assert set(free.tolist()) == set(range(5))

    def test_with_two_classes_a_wrong_label_is_the_other_one(self) -> None:
        """So there is nothing random left, and a step can be computed by hand: both sets in one batch."""
        net, (x, y), (u, v) = linear_net(classes=2), batch(8, 1, classes=2), batch(4, 2, classes=2)
        config = RandomLabelConfig(**PLAIN, optimizer="sgd")
        found = random_label(net, [(u, v)], [(x, y)], config=config).model
        joint = torch.cat([x, u]), torch.cat([y, 1 - v])
        assert close(weights(found), stepped(net, lambda n: cross_entropy(n(joint[0]), joint[1]), 0.1))

    @pytest.mark.parametrize("drawn", ["once", "epoch"])
    def test_passes_take_the_forget_set_first(self, drawn: str) -> None:
        net, (x, y), (u, v) = linear_net(classes=2), batch(8, 1, classes=2), batch(4, 2, classes=2)
        config = RandomLabelConfig(**PLAIN, optimizer="sgd", order="passes", drawn=drawn)
        found = random_label(net, [(u, v)], [(x, y)], config=config).model
        middle = linear_net(classes=2)
        middle.load_state_dict(stepped(net, lambda n: cross_entropy(n(u), 1 - v), 0.1))
        assert close(weights(found), stepped(middle, lambda n: cross_entropy(n(x), y), 0.1))

    def test_mixed_batches_bring_every_sample_once_with_the_label_drawn_for_it(self) -> None:
        net = Recorder()
        x, y = torch.arange(10.0).reshape(10, 1), torch.arange(10) % 4
        u, v = torch.arange(100.0, 107).reshape(7, 1), torch.arange(7) % 4
        forget, retain = in_batches(u, v, 3), in_batches(x, y, 3)
        random_label(net, forget, retain, config=RandomLabelConfig(epochs=2))
        batches = net.seen[1:]  # the first is the look at how many classes there are
        assert [len(b) for b in batches] == [5, 5, 5, 2] * 2
        for epoch in (batches[:4], batches[4:]):
            assert sorted(torch.cat(epoch).flatten().tolist()) == [*range(10), *range(100, 107)]
        order = [[s for s in torch.cat(e).flatten().tolist() if s >= 100] for e in (batches[:4], batches[4:])]
        assert order[0] != order[1]

    @pytest.mark.parametrize("drawn, same", [("once", True), ("epoch", False)])
    @pytest.mark.parametrize("order", ["mixed", "passes"])
    def test_labels_are_drawn_once_or_every_epoch(
        self, drawn: str, same: bool, order: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[dict[float, int]] = []
        net = Recorder()

        def recorded(logits: Tensor, labels: Tensor) -> Tensor:
            given.append(dict(zip(net.seen[-1].flatten().tolist(), labels.tolist(), strict=True)))
            return logits.logsumexp(1).mean()

        monkeypatch.setattr("unweave.baselines.random_label.F.cross_entropy", recorded)
        u, v = torch.arange(100.0, 140).reshape(40, 1), torch.arange(40) % 4
        retain = in_batches(torch.zeros(8, 1), torch.zeros(8, dtype=torch.long), 8)
        config = RandomLabelConfig(epochs=2, drawn=drawn, order=order)
        random_label(net, in_batches(u, v, 40), retain, config=config)
        epochs = [{s: c for s, c in found.items() if s >= 100} for found in given]
        epochs = [found for found in epochs if found]
        assert [len(found) for found in epochs] == [40, 40]
        assert (epochs[0] == epochs[1]) == same
        assert all(found[100.0 + i] != i % 4 for found in epochs for i in range(40))

    def test_mixed_needs_inputs_of_one_shape(self) -> None:
        ids, labels = sentences(6)
        ragged = [(ids, labels), (ids[:, :2], labels)]
        for forget, retain in ((ragged, [(ids, labels)]), ([(ids[:, :2], labels)], [(ids, labels)])):
            with pytest.raises(DataError, match="passes"):
                random_label(token_classifier(), forget, retain)
        config = RandomLabelConfig(epochs=1, order="passes")
        assert random_label(token_classifier(), ragged, ragged, config=config).ok


class Recorder(nn.Module):
    """A linear layer [., 1] to four classes that remembers its inputs."""

    seen: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 4)
        self.seen = []

    def __deepcopy__(self, memo: Any) -> Recorder:
        twin = Recorder()
        twin.load_state_dict(self.state_dict())
        twin.seen = self.seen
        return twin

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.layer(x)


# ------------------------------------------------------------------------------------------------------------ SCRUB


def slow_kl(p_logits: Tensor, q_logits: Tensor, temperature: float) -> float:
    """T² · mean of Σ p (log p − log q), one number at a time."""
    total = 0.0
    for a, b in zip(p_logits.tolist(), q_logits.tolist(), strict=True):
        p, q = ([math.exp(z / temperature) for z in row] for row in (a, b))
        total += sum(u / sum(p) * (math.log(u / sum(p)) - math.log(w / sum(q))) for u, w in zip(p, q, strict=True))
    return temperature**2 * total / len(p_logits)


def loss_of(training: Training) -> Tensor:
    """A loss whose gradient is zero."""
    return sum((0 * p).sum() for p in training.net.parameters())  # type: ignore[return-value]


class TestScrub:
    @pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
    def test_kl_against_a_slow_oracle(self, temperature: float) -> None:
        t, s = torch.randn(2, 7, 5, dtype=torch.float64)
        assert kl_at(t, s, temperature).item() == pytest.approx(slow_kl(t, s, temperature), rel=1e-12)
        assert kl_at(t, t, temperature).item() == pytest.approx(0, abs=1e-14)

    def test_a_student_who_agrees_is_not_moved_by_its_teacher(self) -> None:
        """γ = 0 and no pass over the forget set: the gradient is zero where the student is the teacher."""
        net = linear_net()
        config = ScrubConfig(gamma=0.0, alpha=1.0, forget_epochs=0, epochs=3, lr=1.0, weight_decay=0.0)
        found = scrub(net, Untouchable(), retain_set(), config=config)
        assert close(weights(found.model), weights(net), 1e-13)
        assert found.history[0]["retain_loss"] == pytest.approx(0, abs=1e-14)

    def test_two_steps_by_hand(self) -> None:
        """One up the divergence on the forget set, one down on the retain set; the teacher stays where it was."""
        net, (x, y), (u, v) = linear_net(), batch(9, 1), batch(6, 2)
        start = linear_net(seed=3)  # at the teacher itself the first gradient is zero

        def kl(t: Tensor, s: Tensor) -> Tensor:
            p, q = torch.softmax(t / 2, 1), torch.softmax(s / 2, 1)
            return 4 * (p * (p.log() - q.log())).sum(1).mean()

        config = ScrubConfig(**PLAIN, gamma=0.6, alpha=0.3, temperature=2.0, schedule="constant", decay_epochs=())
        with torch.no_grad():
            taught = net(u), net(x)
        middle = linear_net()
        middle.load_state_dict(stepped(start, lambda n: -kl(taught[0], n(u)), 0.1))
        expected = stepped(middle, lambda n: 0.3 * kl(taught[1], n(x)) + 0.6 * cross_entropy(n(x), y), 0.1)

        training = Training("scrub", start, config)
        found = training.run(_losses(training, net, [(u, v)], [(x, y)], config), []).model
        assert close(weights(found), expected)

    def test_the_forget_set_is_walked_over_in_the_first_epochs_only(self) -> None:
        result = scrub(linear_net(), forget_set(), retain_set(), config=ScrubConfig(epochs=4, forget_epochs=2))
        assert ["forget_loss" in entry for entry in result.history] == [True, True, False, False]
        assert [entry["lr"] for entry in result.history] == pytest.approx([5e-4, 5e-4, 5e-4, 5e-5])

    def test_the_teacher_is_the_model_passed_in_and_at_rest(self) -> None:
        """Batch norm: the student in train mode differs from its teacher in eval mode at once."""
        result = scrub(normed_net(), forget_set(), retain_set(), config=ScrubConfig(epochs=1, forget_epochs=0, gamma=0))
        assert result.history[0]["retain_loss"] > 1e-3

    def test_rewind_takes_the_epoch_nearest_to_held_out_samples(self) -> None:
        net, val = linear_net(), held_out()
        forget = [(x, torch.zeros_like(y)) for x, y in forget_set()]  # one class, of which val has others too
        config = ScrubConfig(epochs=6, lr=0.3, forget_epochs=3, schedule="constant", decay_epochs=())
        plain = scrub(net, forget, retain_set(), val, config)
        result = scrub(net, forget, retain_set(), val, ScrubConfig(**{**vars(config), "rewind": True}))
        x, y = val[0]
        aim = 100 * float((plain.model(x[y == 0]).argmax(1) != 0).double().mean())
        errors = [entry["forget_error"] for entry in result.history]
        assert result.extras["aim"] == pytest.approx(aim)
        assert result.extras["forget_errors"] == errors
        distances = [abs(e - aim) for e in errors]
        chosen = result.extras["epoch"] - 1
        assert distances[chosen] == min(distances)
        assert not any(d == min(distances) for d in distances[chosen + 1 :])
        inputs = torch.cat([x for x, _ in forget])
        assert 100 * float((result.model(inputs).argmax(1) != 0).double().mean()) == pytest.approx(errors[chosen])
        shorter = scrub(net, forget, retain_set(), None, ScrubConfig(**{**vars(config), "epochs": chosen + 1}))
        assert equal(tensors(result.model), tensors(shorter.model))
        assert chosen < 5, "choose a problem where rewinding goes somewhere"

    def test_of_equally_near_epochs_rewind_takes_the_latest(self) -> None:
        training = Training("scrub", linear_net(), ScrubConfig(rewind=True))
        rewinding = _Rewind(training, forget_set(), held_out())
        aim = rewinding.target()
        rewinding.errors = [aim + 9, aim - 2, aim + 2, aim - 2, aim + 3]
        rewinding.states = [{n: v + i for n, v in training.state().items()} for i in range(5)]
        result = rewinding.choose(training.run(lambda epoch: iter([("none", loss_of(training))]), []))
        assert result.extras["epoch"] == 4
        assert close(tensors(result.model), {n: v + 3 for n, v in tensors(linear_net()).items()})

    def test_rewind_needs_held_out_samples_of_the_class(self) -> None:
        with pytest.raises(DataError, match="val"):
            scrub(linear_net(), forget_set(), retain_set(), config=ScrubConfig(rewind=True))
        x, _ = batch(9, 5)
        with pytest.raises(DataError, match="class 1, 2"):
            scrub(
                linear_net(), forget_set(), retain_set(), [(x, torch.zeros(9).long())], config=ScrubConfig(rewind=True)
            )


# ------------------------------------------------------------------------------------------------------------ SalUn


class TestSalUn:
    def test_the_mask_is_the_largest_summed_gradients_of_all_weights_together(self) -> None:
        net = normed_net()
        total = [torch.zeros_like(p) for p in net.parameters()]
        for x, y in forget_set():
            found = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
            total = [t + g for t, g in zip(total, found, strict=True)]
        sizes = sorted((abs(v) for t in total for v in t.flatten().tolist()), reverse=True)
        count = int(0.3 * len(sizes))
        training = Training("salun", normed_net().train(), SalUnConfig())
        masks = saliency_masks(training, forget_set(), 0.3)
        assert sum(int(m.sum()) for m in masks.values()) == count
        for mask, t in zip(masks.values(), total, strict=True):
            assert torch.equal(mask.bool(), t.abs() >= sizes[count - 1])

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_what_the_mask_leaves_out_keeps_every_bit(self, optimizer: str) -> None:
        net = normed_net()
        config = SalUnConfig(
            epochs=3, lr=0.05, momentum=0.9, weight_decay=0.1, share=0.4, clip=1.0, optimizer=optimizer
        )
        masks = saliency_masks(Training("salun", normed_net(), config), forget_set(), 0.4)
        result = salun(net, forget_set(), retain_set(), config=config)
        for old, new, mask in zip(net.parameters(), result.model.parameters(), masks.values(), strict=True):
            assert torch.equal(old[mask == 0], new[mask == 0])
        changed = sum(int((o != n).sum()) for o, n in zip(net.parameters(), result.model.parameters(), strict=True))
        assert result.extras["moving"] == sum(int(m.sum()) for m in masks.values())
        assert changed == result.extras["moving"]

    def test_with_all_weights_it_is_random_labels(self) -> None:
        """Also the weight decay, which takes another way through the mask."""
        shared: dict[str, Any] = {"epochs": 2, "lr": 0.1, "weight_decay": 0.1}
        how = {"labels": "any", "drawn": "epoch", "order": "passes"}
        found = salun(normed_net(), forget_set(), retain_set(), config=SalUnConfig(**shared, share=1.0))
        config = RandomLabelConfig(**shared, **how, optimizer="sgd")
        same = random_label(normed_net(), forget_set(), retain_set(), config=config)
        assert close(tensors(found.model), tensors(same.model))


# ----------------------------------------------------------------------------------------------------------- DELETE


class TestDelete:
    def test_the_distance_against_a_slow_oracle(self) -> None:
        t, s = torch.randn(2, 7, 5, dtype=torch.float64)
        labels = torch.arange(7) % 5
        total = 0.0
        for a, b, y in zip(t.tolist(), s.tolist(), labels.tolist(), strict=True):
            others = [c for c in range(5) if c != y]
            p = {c: math.exp(a[c]) / sum(math.exp(a[d]) for d in others) for c in others}
            q = {c: math.exp(b[c]) / sum(map(math.exp, b)) for c in others}
            total += sum(p[c] * math.log(p[c] / q[c]) for c in others)
        assert masked_distance(t, s, labels).item() == pytest.approx(total / 7, rel=1e-12)

    def test_its_gradient_is_finite_and_q_minus_p(self) -> None:
        t, s = torch.randn(2, 7, 5, dtype=torch.float64)
        labels = torch.arange(7) % 5
        s.requires_grad_()
        (gradient,) = torch.autograd.grad(masked_distance(t, s, labels), s)
        p = torch.softmax(t, 1).scatter(1, labels[:, None], 0)
        assert torch.allclose(gradient, (torch.softmax(s, 1) - p / p.sum(1, keepdim=True)) / 7, atol=1e-14)

    def test_one_step_by_hand_and_no_retained_data(self) -> None:
        net, (x, y) = linear_net(), batch(6, 1)
        with torch.no_grad():
            p = torch.softmax(net(x), 1).scatter(1, y[:, None], 0)
            p = p / p.sum(1, keepdim=True)
        hand = stepped(net, lambda n: -(p * torch.log_softmax(n(x), 1)).sum(1).mean(), 0.1)
        assert close(weights(delete(net, [(x, y)], Untouchable(), config=DeleteConfig(**PLAIN)).model), hand)

    def test_the_fixed_point_is_the_teacher_without_the_class(self) -> None:
        """A network that is nothing but logits reaches it: p_y → 0, and the other classes keep their proportions."""
        net = nn.Sequential(nn.Linear(3, 4, bias=False)).double()
        x, y = torch.eye(3, dtype=torch.float64), torch.tensor([0, 1, 2])
        before = torch.softmax(net(x), 1)
        config = DeleteConfig(epochs=400, lr=2.0, weight_decay=0)
        after = torch.softmax(delete(net, [(x, y)], config=config).model(x), 1)
        p = before.scatter(1, y[:, None], 0)
        assert torch.allclose(after, p / p.sum(1, keepdim=True), atol=5e-3)
