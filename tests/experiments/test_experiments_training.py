"""A recipe trains what its numbers say, the same for each seed, alone or among others."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.data import Labelled, load_embedded
from experiments.datasets.images import error
from experiments.training import fast as fast_training
from experiments.training.augmentation import augment
from experiments.training.dropout import dropout_drawn_from
from experiments.training.fast import RECIPES, Learning, Recipe, one_cycle, train_end, train_many, train_recipe
from experiments.training.optimisers import optimiser_of
from experiments.training.recipes import recipe_of
from unweave.errors import ConfigError, DataError

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


SMALL = Recipe("small", small_net, epochs=3, lr=0.1, batch_size=8, weight_decay=1e-3, padding=2)
PUBLISHED = dataclasses.replace(SMALL, schedule="exponential", lr_end=0.01)
# Where a gradient is all but zero (a bias before batch norm), Adam would step by rounding errors: decay outweighs them.
ADAM = dataclasses.replace(PUBLISHED, optimiser="adam", lr=0.01, lr_end=0.001, weight_decay=0.05)
PLAIN_END = dataclasses.replace(SMALL, plain_epochs=1)
KINDS = {"one cycle": SMALL, "exponential": PUBLISHED, "adam": ADAM, "plain end": PLAIN_END}
EVERY_KIND = pytest.mark.parametrize("recipe", KINDS.values(), ids=KINDS)


def images(n: int, seed: int = 0, device: str = "cpu") -> Labelled:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 3, 8, 8, generator=generator) + y.view(-1, 1, 1, 1)
    return Labelled(x.to(device), y.to(device))


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def whole(net: nn.Module) -> Learning:
    return Learning(net, list(net.parameters()))


def linear_layer_of(net: nn.Module) -> Learning:
    """The last layer learns; the norm layer before it must not gather statistics."""
    return Learning(net, list(net[5].parameters()), [net[1]])


@contextmanager
def dropping_in_turn(generator: torch.Generator, net: nn.Module) -> Iterator[None]:
    """Dropout told plainly: each layer draws when its turn comes."""

    def dropped(layer: nn.Module, given: tuple[Tensor, ...], _: object) -> Tensor:
        keep = 1 - layer.p
        return given[0] * torch.empty_like(given[0]).bernoulli_(keep, generator=generator).div_(keep)

    hooks = [layer.register_forward_hook(dropped) for layer in net.modules() if isinstance(layer, nn.Dropout)]
    with torch.random.fork_rng():  # what the layers draw themselves is not used
        yield
    for hook in hooks:
        hook.remove()


def step_by_step(recipe: Recipe, data: Labelled, seed: int, learning: Learning | None = None) -> nn.Module:
    """The recipe told plainly: an epoch is shuffled and augmented at once, what fills no batch is dropped."""
    torch.manual_seed(seed)
    net = (learning.net if learning else recipe.build()).to(memory_format=torch.channels_last).train()
    weights = list(learning.weights if learning else net.parameters())
    for module in learning.still if learning else ():
        module.eval()
    order, masks = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    momentum, squares = ([torch.zeros_like(p) for p in weights] for _ in range(2))
    size = recipe.batch_size
    batches = len(data) // size
    done = 0
    with dropping_in_turn(masks, net):
        for epoch in range(recipe.epochs):
            chosen = torch.randperm(len(data), generator=order)[: batches * size]
            shown = data.x[chosen]
            if epoch < recipe.epochs - recipe.plain_epochs:
                shown = augment(shown, recipe.padding, order)
            x = shown.contiguous(memory_format=torch.channels_last)
            for i in range(batches):
                part = slice(i * size, (i + 1) * size)
                loss = F.cross_entropy(net(x[part]), data.y[chosen][part])
                falling = recipe.lr * (recipe.lr_end / recipe.lr) ** (epoch / recipe.epochs)
                cycle = recipe.schedule == "one cycle"
                lr = recipe.lr * one_cycle(done / (recipe.epochs * batches)) if cycle else falling
                grads = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for p, g, v, w in zip(weights, grads, momentum, squares, strict=True):
                        g = g + recipe.weight_decay * p
                        if recipe.optimiser == "adam":
                            v.mul_(0.9).add_(0.1 * g)
                            w.mul_(0.999).add_(0.001 * g**2)
                            mean, square = v / (1 - 0.9 ** (done + 1)), w / (1 - 0.999 ** (done + 1))
                            p.sub_(lr * mean / (square.sqrt() + 1e-8))
                        else:
                            v.mul_(0.9).add_(g)
                            p.sub_(lr * (g + 0.9 * v if cycle else v))
                done += 1
    return net.eval()


@EVERY_KIND
def test_training_is_the_recipe_told_plainly(recipe: Recipe) -> None:
    data = images(30)
    found, expected = train_recipe(recipe, data, 5), step_by_step(recipe, data, 5)
    for (name, a), b in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert not found.training


@EVERY_KIND
def test_a_part_learns_by_the_same_recipe_and_the_rest_keeps_every_bit(recipe: Recipe) -> None:
    data, net = images(30), train_recipe(SMALL, images(30), 1)
    net[0].weight.requires_grad_(False)
    before, plain = copy.deepcopy(net.state_dict()), copy.deepcopy(net)
    expected = step_by_step(recipe, data, 5, linear_layer_of(plain)).state_dict()
    found = train_end(recipe, linear_layer_of(net), data, 5)
    assert found is net
    assert not any(module.training for module in net.modules())
    assert [name for name, weight in net.named_parameters() if not weight.requires_grad] == ["0.weight"], "as before"
    for name, value in net.state_dict().items():
        if name.startswith("5."):
            assert not torch.equal(value, before[name])
            torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(value, before[name]), name


def test_a_part_that_is_everything_is_a_training() -> None:
    torch.manual_seed(5)
    net = small_net().to(memory_format=torch.channels_last)
    assert same(train_end(SMALL, whole(net), images(30), 5), train_recipe(SMALL, images(30), 5))


def test_a_batch_is_what_augment_makes_of_the_same_draws() -> None:
    data = images(20)
    draws = torch.Generator().manual_seed(3)
    padded = fast_training._Padded.of(data, 2)
    chosen = torch.tensor([4, 4, 19, 0])
    crops = fast_training.draw_crops(4, 2, draws)
    x, y = padded.batch(chosen, *crops)
    assert torch.equal(x, augment(data.x[chosen], 2, draws.manual_seed(3)))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, data.y[chosen])


def test_a_compiled_loss_takes_the_same_steps_and_serves_networks_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, data = SMALL, images(20)  # with dropout
    plain = train_many(recipe, data, [0, 1])
    graphs = list[object]()

    def counting(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(fast_training._loss, dynamic=False, backend=counting)
    monkeypatch.setattr(fast_training, "_loss_for", lambda *_: compiled)
    for expected, found in zip(plain, train_many(recipe, data, [0, 1]), strict=True):
        for a, b in zip(expected.state_dict().values(), found.state_dict().values(), strict=True):
            torch.testing.assert_close(b, a)
    assert len(graphs) == 1


def test_the_loss_is_compiled_for_shapes_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda *given, **settings: (given, settings))
    assert fast_training._compiled_loss.__wrapped__() == ((fast_training._loss,), {"dynamic": False})


def test_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, net = torch.device("cuda"), small_net()
    monkeypatch.setattr(fast_training, "_compiled_loss", lambda: "compiled")
    for there, device, learning, expected in (
        (True, gpu, whole(net), "compiled"),
        (False, gpu, whole(net), fast_training._loss),
        (True, torch.device("cpu"), whole(net), fast_training._loss),
        (True, gpu, linear_layer_of(net), fast_training._loss),
    ):
        monkeypatch.setattr(fast_training, "has_triton", lambda there=there: there)
        assert fast_training._loss_for(learning, device) == expected


@EVERY_KIND
def test_networks_trained_together_are_those_trained_alone(recipe: Recipe) -> None:
    data = images(30)
    together = train_many(recipe, data, [1, 2, 1])
    alone = [train_recipe(recipe, data, seed) for seed in (1, 2)]
    assert same(together[0], alone[0])
    assert same(together[1], alone[1])
    assert same(together[2], alone[0])
    assert not same(alone[0], alone[1])


def test_each_network_may_have_its_own_data() -> None:
    sets = [images(30), images(17, seed=1)]
    together = train_many(SMALL, sets, [1, 1])
    assert all(same(net, train_recipe(SMALL, own, 1)) for net, own in zip(together, sets, strict=True))
    assert train_many(SMALL, images(30), []) == []
    with pytest.raises(ConfigError, match="2 sets for 1 seeds"):
        train_many(SMALL, sets, [1])


@EVERY_KIND
def test_training_leaves_the_generator_of_the_process_and_the_dropout_alone(recipe: Recipe) -> None:
    before = torch.get_rng_state()
    net = train_recipe(recipe, images(30), 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert [type(layer) for layer in net.modules()] == [type(layer) for layer in small_net().modules()]
    assert not any(layer.training for layer in net.modules())
    torch.manual_seed(7)
    assert same(train_recipe(recipe, images(30), 1), net), "nor does it depend on it"


def test_dropout_from_a_generator_drops_and_scales() -> None:
    net = nn.Sequential(nn.Dropout(0.25), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.5)))
    layers, before = list(net.modules()), {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.ones(10_000, 4, requires_grad=True)
    with dropout_drawn_from(torch.Generator().manual_seed(0), net, x) as draw:
        assert set(net.state_dict()) == set(before)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items()), "a look, no step"
        assert net.training
        draw()
        y = net[0](x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(net[0](x), y), "until the next draw"
        assert torch.equal(net[0](x[:7]), y[:7]), "the last batch of an epoch may be smaller"
        assert set(net[2](x).unique().tolist()) == {0, 2}
        draw()
        assert not torch.equal(net[0](x), y)
        assert torch.equal(net.eval()[0](x), x)
    assert list(net.modules()) == layers
    assert not any(layer.training for layer in layers)
    torch.testing.assert_close(y.unique(), torch.tensor([0, 4 / 3]))
    assert torch.equal(slope, y)
    assert abs(float((y == 0).double().mean()) - 0.25) < 0.01, "4.6 standard deviations"


def test_the_step_that_counts_for_itself_takes_the_same_steps() -> None:
    """What a GPU captures, run one kernel at a time on the CPU."""
    net, data = small_net(), fast_training._Padded.of(images(30), 2)
    with ExitStack() as stack:
        plain, counted = (fast_training._Run(SMALL, data, 1, stack, whole(copy.deepcopy(net))) for _ in range(2))
        for group in counted.optimiser.param_groups:
            group["lr"] = torch.tensor(0.0)
        for i in range(plain.steps):
            plain.step(i)
            counted._counted_step()
    assert int(counted.done) == plain.steps == 9
    for a, b in zip(plain.net.parameters(), counted.net.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def first_step(recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """A weight before and after one step on one batch, and its gradient; the images look the same when mirrored."""
    data = Labelled(torch.ones(8, 3, 1, 1), torch.arange(8) % 2)
    recipe = dataclasses.replace(recipe, build=linear, epochs=1, batch_size=8, padding=0)
    torch.manual_seed(4)
    net = linear()
    before = net[1].weight.detach().clone()
    (slope,) = torch.autograd.grad(F.cross_entropy(net(data.x), data.y), net[1].weight)
    return before, train_recipe(recipe, data, 4)[1].weight.detach(), slope


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 2))


def test_the_papers_sgd_decays_weights_with_the_gradient() -> None:
    before, after, slope = first_step(dataclasses.replace(PUBLISHED, weight_decay=0.5))
    torch.testing.assert_close(after, before - 0.1 * (slope + 0.5 * before))


def test_the_papers_adam_decays_weights_with_the_gradient() -> None:
    before, after, slope = first_step(dataclasses.replace(PUBLISHED, optimiser="adam", weight_decay=0.5))
    whole = slope + 0.5 * before
    # Both running means start at 0 and are corrected for it: the first step is the gradient over its size.
    torch.testing.assert_close(after, before - 0.1 * whole / (whole.abs() + 1e-8))


def test_the_papers_recipes_are_those_of_its_code() -> None:
    shared = {"schedule": "exponential", "batch_size": 256}
    cifar = shared | {"lr": 0.01, "lr_end": 0.0005, "weight_decay": 1e-4, "padding": 4, "optimiser": "sgd"}
    tiny = shared | {"lr": 0.001, "lr_end": 0.0001, "weight_decay": 2e-4, "padding": 8, "optimiser": "adam"}
    expected = {
        "allcnn-cifar10-paper": cifar | {"build": "allcnn", "epochs": 100},
        "smallvgg-cifar10-paper": cifar | {"build": "smallvgg", "epochs": 200},
        "resnet18-tiny-paper": tiny | {"build": "ResNet18", "epochs": 200},
    }
    for name, settings in expected.items():
        assert RECIPES[name].settings() == settings | {"name": name}


def test_the_recipe_of_the_papers_text_departs_from_its_code_where_the_text_does() -> None:
    code, text = (RECIPES[f"allcnn-cifar10-{end}"].settings() for end in ("paper", "text"))
    changed = {"name": "allcnn-cifar10-text", "epochs": 200, "batch_size": 250, "optimiser": "nesterov"}
    assert text == code | changed


@pytest.mark.parametrize("optimiser", ["sgd", "nesterov"])
def test_nesterovs_momentum_is_there_where_the_recipe_asks_for_it(optimiser: str) -> None:
    recipe = dataclasses.replace(PUBLISHED, optimiser=optimiser, build=linear, epochs=2, weight_decay=0.0)
    made = optimiser_of(recipe, list(linear().parameters()), torch.device("cpu"))
    assert made.param_groups[0]["momentum"] == 0.9
    assert made.param_groups[0]["nesterov"] == (optimiser == "nesterov")
    assert not dataclasses.replace(ADAM).is_nesterov
    assert SMALL.is_nesterov


def test_only_recipes_with_plain_epochs_tell_of_them() -> None:
    assert "plain_epochs" not in SMALL.settings(), "outcomes of before these existed stay valid"
    assert PLAIN_END.settings() == SMALL.settings() | {"plain_epochs": 1}


def test_a_recipe_for_fewer_epochs_has_no_more_plain_ones_than_these() -> None:
    plain = dataclasses.replace(SMALL, epochs=9, plain_epochs=2)
    assert [plain.lasting(n) for n in (1, 4)] == [
        dataclasses.replace(SMALL, epochs=n, plain_epochs=kept) for n, kept in ((1, 1), (4, 2))
    ]


def test_recipes_are_found_by_name_and_refused_when_wrong() -> None:
    assert all(recipe_of(name).name == name for name in RECIPES)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("Invalid recipe: 'vgg'.*allcnn-cifar10", lambda: train_recipe("vgg", images(30), 0)),
        (
            "Invalid optimiser: 'Adam'. Supported: 'sgd', 'nesterov', 'adam'",
            lambda: dataclasses.replace(SMALL, optimiser="Adam"),
        ),
        ("Invalid schedule: 'cosine'. Supp", lambda: dataclasses.replace(SMALL, schedule="cosine")),
        ("Invalid lr_end: 0", lambda: dataclasses.replace(SMALL, schedule="exponential")),
        ("Invalid epochs", lambda: dataclasses.replace(SMALL, epochs=0)),
        ("Invalid plain_epochs: 4. Supported: 0 to epochs, 3", lambda: dataclasses.replace(SMALL, plain_epochs=4)),
    ]
    for message, make in refused:
        with pytest.raises(ConfigError, match=message):
            make()
    with pytest.raises(DataError, match="7 images do not fill a batch of recipe small: give 8"):
        train_recipe(SMALL, images(7), 0)


def test_the_quick_recipe_learns_its_images_by_heart() -> None:
    data = load_embedded(torch.device("cpu"), per_class=100)
    net = train_recipe("quick", data.train, 0)
    assert error(net, data.train) < 5
    assert error(net, data.test) < 70, "a guess is wrong on 90 %"


@CUDA
@EVERY_KIND
def test_captured_networks_are_alike_together_and_alone(recipe: Recipe) -> None:
    data = images(64, device="cuda")
    recipe = dataclasses.replace(recipe, epochs=10)
    together = train_many(recipe, data, [1, 2])
    for net, seed in zip(together, (1, 2), strict=True):
        alone = train_recipe(recipe, data, seed)
        for a, b in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.02)
        assert error(net, data) < 40, "a guess is wrong on 67 %"


@CUDA
@EVERY_KIND
def test_a_capture_takes_its_own_steps_back(recipe: Recipe) -> None:
    net = small_net().cuda().to(memory_format=torch.channels_last)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    data = fast_training._Padded.of(images(30, device="cuda"), recipe.padding)
    with ExitStack() as stack:
        state = fast_training._Run(recipe, data, 1, stack, whole(net)).state()
    assert all(torch.equal(state[f"net.{name}"], value) for name, value in before.items())
    remembered = [value for name, value in state.items() if name.startswith("optimiser.")]
    assert remembered
    assert not any(value.any() for value in remembered)
    assert int(state["steps done"]) == 0


@CUDA
def test_a_captured_part_learns_and_the_rest_keeps_every_bit() -> None:
    data, net = images(40, device="cuda"), train_recipe(SMALL, images(40, device="cuda"), 1)
    before = copy.deepcopy(net.state_dict())
    train_end(SMALL, linear_layer_of(net), data, 5)
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"5.weight", "5.bias"}
