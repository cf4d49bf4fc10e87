from __future__ import annotations

import hashlib
import re
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from helpers import images, in_batches, small_cnn
from torch import Tensor, nn

import unweave
from unweave.errors import DataError, LayerError, ModelError, UnweaveError
from unweave.gradients.per_sample import logits_with
from unweave.reading.batches import checked, device_of, logits_of, map_tensors, reusable, run, tensors_of
from unweave.reading.samples import DIGESTED, Samples

X, LABELS = images(4)
CPU = torch.device("cpu")


def refuses(kind: type[UnweaveError], words: str, net: nn.Module, loader: Any) -> None:
    """fit() says so, with an error that is also a ValueError; ``words`` are the thing and the remedy."""
    with pytest.raises(kind, match=words) as caught:
        unweave.fit(net, loader)
    assert isinstance(caught.value, UnweaveError)
    assert isinstance(caught.value, ValueError)


# ------------------------------------------------------------------------------------------------- loaders and batches


class NotIterable:
    pass


@pytest.mark.parametrize(
    "loader, words",
    [
        ([], r"training loader is empty.*at least one sample"),
        ([(X[:0], LABELS[:0])], r"training loader is empty.*at least one sample"),
        (iter([]), r"training loader is empty.*a generator runs once"),
        (NotIterable(), r"training loader is a NotIterable.*Pass a DataLoader"),
        (5, r"training loader is a int.*Pass a DataLoader"),
        ((X, LABELS), r"training loader is a pair of tensors.*\[\(x, y\)\] for one batch"),
        ([X], r"batch 0 of the training loader: Tensor.*a pair \(inputs, labels\)"),
        ([torch.tensor(3.0)], r"batch 0 of the training loader: Tensor.*a pair"),
        ([(X, LABELS, LABELS)], r"batch 0 of the training loader: tuple of 3.*a pair"),
        ([(X,)], r"tuple of 1.*a pair"),
        ([{"inputs": X, "labels": LABELS}], r"batch 0 of the training loader: dict.*a pair"),
        ([(X, LABELS), (X, LABELS.double())], r"labels in batch 1 .*float64.*integer class indices"),
        ([(X, LABELS[0])], r"labels in batch 0 .*shape \[\].*shape \[N\]; a loader yields batches"),
        ([(X, ["cat", "dog", "cat", "dog"])], r"labels in batch 0 .*list.*integer class indices"),
        ([(X, None)], r"labels in batch 0 .*NoneType.*integer class indices"),
        ([(X, LABELS + 1)], r"In batch 0 of the training loader: Labels from 1 to 3 with 3 classes.*0 to C - 1"),
        ([(X, LABELS), (X, LABELS - 1)], r"In batch 1 .*: Labels from -1 to 1 with 3 classes.*0 to C - 1"),
        ([(X[:3], LABELS)], r"batch 0 .*\[3, 2, 5, 5\] with 4 labels.*first axis"),
        ([((X, X[:2]), LABELS)], r"\[2, 2, 5, 5\] with 4 labels.*first axis"),
        ([(torch.tensor(1.0), LABELS)], r"shape \[\] with 4 labels.*first axis"),
        ([("four images", LABELS)], r"inputs in batch 0 .*str holds no tensor"),
        ([({}, LABELS)], r"inputs in batch 0 .*dict holds no tensor"),
        ([(X.numpy(), LABELS)], r"inputs in batch 0 .*ndarray holds no tensor\. Use torch\.as_tensor"),
        (
            [(X, X, LABELS)],
            r"batch 0 .*tuple of 3\. .*\(\(ids, mask\), labels\): \[\(tuple\(b\[:-1\]\), b\[-1\]\) for b in",
        ),
        (
            [{"x": X, "labels": LABELS}],
            r"batch 0 .*dict\. Supported: a pair .*if k != 'labels'}, b\['labels'\]\) for b in",
        ),
        ([(X, LABELS), (X / 0, LABELS)], r"inputs in batch 1 .*NaN or infinite.*drop those samples"),
        ([(X * float("nan"), LABELS)], r"inputs in batch 0 .*NaN or infinite.*drop those samples"),
    ],
)
def test_a_loader_or_batch_that_cannot_be_used_is_refused_with_a_remedy(loader: Any, words: str) -> None:
    refuses(DataError, words, small_cnn(), loader)


ONE_HOT = nn.functional.one_hot(LABELS, 3)


@pytest.mark.parametrize(
    "labels, words, way",
    [
        (LABELS[:, None], r"int64 of shape \[4, 1\]", "labels.squeeze(1)"),
        (LABELS[:, None].double(), r"float64 of shape \[4, 1\]", "labels.squeeze(1).long()"),
        (LABELS.float(), r"float32 of shape \[4\]", "labels.long()"),
        (LABELS == 0, r"bool of shape \[4\]", "labels.long()"),
        (ONE_HOT, r"int64 of shape \[4, 3\]", "labels.argmax(1)"),
        (ONE_HOT.float(), r"float32 of shape \[4, 3\]", "labels.argmax(1)"),
        (ONE_HOT.bool(), r"bool of shape \[4, 3\]", "labels.int().argmax(1)"),
    ],
)
def test_labels_that_mean_classes_get_the_way_that_makes_indices_of_them(labels: Tensor, words: str, way: str) -> None:
    with pytest.raises(DataError, match=rf"labels in batch 0 .*{words}.*pass {re.escape(way)}\.$"):
        unweave.fit(small_cnn(), [(X, labels)])
    ((_, got),) = checked([(X, eval(way))], "training")
    assert torch.equal(got, (LABELS == 0).long() if labels.dim() == 1 and labels.dtype == torch.bool else LABELS)


@pytest.mark.parametrize(
    "labels, words",
    [
        (LABELS + 0.5, "no whole numbers.*not supported"),
        (LABELS * float("nan"), "no whole numbers.*not supported"),
        (LABELS / 0, "no whole numbers.*not supported"),
        (LABELS[:, None] + 0.5, "no whole numbers.*not supported"),
        (LABELS.to(torch.complex64), "no whole numbers.*not supported"),
        (torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]), "multi-label, soft labels.*not supported"),
        (torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]), "multi-label, soft labels.*not supported"),
        (torch.tensor([[2, -1, 0]] * 4), "multi-label, soft labels.*not supported"),
        (torch.full((4, 3), 1 / 3), "multi-label, soft labels.*not supported"),
        (ONE_HOT[:, :, None], "pixels or words.*not supported"),
    ],
)
def test_labels_that_mean_something_else_get_no_way_that_would_hide_it(labels: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        unweave.fit(small_cnn(), [(X, labels)])
    assert "pass labels" not in str(caught.value)


def test_the_error_names_which_loader() -> None:
    with pytest.raises(DataError, match="batch 0 of the validation loader"):
        unweave.fit(small_cnn(), in_batches(X, LABELS, 2), val=[(X, LABELS.double())])
    with pytest.raises(DataError, match="batch 0 of the validation loader: Labels from 1 to 3 with 3 classes"):
        unweave.fit(small_cnn(), in_batches(X, LABELS, 2), val=[(X, LABELS + 1)])


def test_empty_batches_in_between_are_skipped() -> None:
    batches = [(X[:0], LABELS[:0]), (X, LABELS), (X[:0], LABELS[:0])]
    assert len(list(checked(batches, "training"))) == 1


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], numpy.array([0, 1, 2, 0], dtype=numpy.uint8), LABELS.int()])
def test_integer_labels_of_any_make_become_indices(labels: Any) -> None:
    ((_, got),) = checked([(X, labels)], "training", CPU)
    assert got.dtype == torch.int64
    assert got.tolist() == [0, 1, 2, 0]


def test_a_generator_is_made_reusable_and_a_loader_left_alone() -> None:
    kept = reusable(iter([1, 2]))
    assert list(kept) == list(kept) == [1, 2]
    loader = [1, 2]
    assert reusable(loader) is loader


# ------------------------------------------------------------------------------------------------------------- models


class Returning(nn.Module):
    """A linear model whose logits are handed to a function."""

    def __init__(self, change: Any, classes: int = 3) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(50, classes).double(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.inner(x.flatten(1)))


@pytest.mark.parametrize(
    "change, classes, words",
    [
        (lambda z: z[:, 0].long(), 3, r"shape \[4\] for 4 samples.*wrap a model that returns something else"),
        (lambda z: z[:, None], 3, r"shape \[4, 1, 3\] for 4 samples.*wrap a model"),
        (lambda z: z[:2], 3, r"shape \[2, 3\] for 4 samples.*logits \[N, C\]"),
        (
            lambda z: z[:, :1].int(),
            3,
            r"shape \[4, 1\] for 4 samples.*C >= 2; wrap a model that returns something else",
        ),
        (lambda z: z.argmax(1, keepdim=True).expand(-1, 3), 3, r"int64 of shape.*logits \[N, C\]"),
        (lambda z: (z, z), 3, r"returned a tuple, not logits.*Wrap it"),
        (lambda z: {"scores": z}, 3, r"returned a dict, not logits.*Wrap it.*a dict that has one as 'logits'"),
        (lambda z: {"logits": [z]}, 3, r"returned a dict, not logits.*Wrap it"),
        (lambda z: None, 3, r"returned a NoneType, not logits.*Wrap it"),
        (lambda z: z / 0, 3, r"logits are NaN or infinite.*Check its weights"),
    ],
)
def test_a_model_that_returns_no_logits_is_refused_with_a_remedy(change: Any, classes: int, words: str) -> None:
    refuses(ModelError, words, Returning(change, classes), [(X, LABELS % classes)])


@pytest.mark.parametrize(
    "change, way",
    [
        (lambda z: z, "torch.cat([torch.zeros_like(z), z], 1)"),
        (lambda z: z[:, 0], "torch.stack([torch.zeros_like(z), z], 1)"),
    ],
)
def test_a_model_with_one_logit_is_told_how_it_gets_two(change: Any, way: str) -> None:
    one = Returning(change, classes=1)
    refuses(ModelError, rf"one logit z .*return {re.escape(way)}\.$", one, [(X, LABELS % 2)])
    two = Returning(lambda z: eval(way, {"torch": torch, "z": change(z)}), classes=1)
    logits = logits_of(two, X, LABELS % 2)
    assert torch.allclose(logits.softmax(1)[:, 1], two.inner(X.flatten(1))[:, 0].sigmoid())


def test_weights_that_are_not_finite_are_refused_by_name() -> None:
    net = small_cnn()
    net[3].weight.data[0, 0, 0, 0] = float("nan")
    refuses(ModelError, r"'3\.weight' of the model holds NaN.*finite", net, [(X, LABELS)])


def test_buffers_that_are_not_finite_are_refused_by_name() -> None:
    net = small_cnn()
    net[1].running_var[0] = float("inf")
    refuses(ModelError, r"'1\.running_var' of the model holds NaN or infinite", net, [(X, LABELS)])


def test_batch_norm_without_running_statistics_is_refused_by_name() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.BatchNorm1d(3, track_running_stats=False)).double()
    refuses(ModelError, r"'2' normalises with the statistics of each batch.*Use running statistics", net, [(X, LABELS)])


def test_a_lazy_batch_norm_is_refused_even_where_its_layer_is_known() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.LazyBatchNorm1d()).double()
    refuses(ModelError, r"'2\..*' of the model is lazy.*Run the model once", net, [(X, LABELS)])


def test_a_lazy_layer_that_was_left_out_is_not_filled_behind_the_users_back() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.LazyLinear(3)).double()
    with pytest.raises(ModelError, match=r"'2\.weight' of the model is lazy"):
        unweave.fit(net, [(X, LABELS)], layers=["1"])
    assert nn.parameter.is_lazy(net[2].weight)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match=r"Flatten has no parameters"):
        device_of(nn.Flatten())
    refuses(LayerError, "No layer of a known type in Flatten", nn.Flatten(), [(X, LABELS)])


def test_logits_come_back_unchanged() -> None:
    net = Returning(lambda z: z)
    assert torch.equal(logits_of(net, X, LABELS), net(X))


@pytest.mark.parametrize(
    "hold",
    [lambda z: SimpleNamespace(logits=z), lambda z: {"loss": 0.0, "logits": z}, lambda z: UserDict(logits=z)],
)
def test_logits_may_come_in_an_object_or_a_dict(hold: Any) -> None:
    plain = Returning(lambda z: z)
    holding = Returning(hold)
    holding.load_state_dict(plain.state_dict())
    assert torch.equal(logits_of(holding, X, LABELS), plain(X))
    grams, same = (unweave.fit(net, [(X, LABELS)]) for net in (holding, plain))
    assert torch.equal(grams["inner"], same["inner"])
    weights = dict(holding.named_parameters())
    assert torch.equal(logits_with(holding, weights, X), plain(X))


def test_inputs_are_passed_as_they_ask_for() -> None:
    class Noting(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.call = (len(args), sorted(kwargs))
            return SimpleNamespace(logits=X)

    net = Noting()
    for inputs, call in [(X, (1, [])), ((X, X), (2, [])), ([X], (1, [])), ({"a": X, "b": X}, (0, ["a", "b"]))]:
        assert run(net, inputs) is X
        assert net.call == call


# ------------------------------------------------------------------------------------------------- nests of tensors


def test_a_nest_keeps_its_structure() -> None:
    nest = {"a": X, "b": (X, [X, "a flag"])}
    doubled = map_tensors(nest, lambda t: 2 * t)
    assert torch.equal(doubled["b"][1][0], 2 * X)
    assert doubled["b"][1][1] == "a flag"
    assert len(list(tensors_of(nest))) == 3


def test_a_hugging_face_batch_encoding_is_a_dict() -> None:
    encoding = UserDict({"input_ids": X})
    assert torch.equal(map_tensors(encoding, lambda t: 2 * t)["input_ids"], 2 * X)
    assert len(list(tensors_of(encoding))) == 1


# --------------------------------------------------------------------------------------------------------- samples


def samples(size: int, order: Tensor | None = None, inputs: Any = None) -> Samples:
    x, labels = images(7)
    order = torch.arange(7) if order is None else order
    inputs = x if inputs is None else inputs
    picked = map_tensors(inputs, lambda t: t[order])
    return Samples.load(in_batches(picked, labels[order], size), "forget", CPU)


def test_joined_samples_come_in_any_batch_size() -> None:
    x, labels = images(7)
    held = samples(3)
    batches = list(held.batches(5))
    assert [len(b[1]) for b in batches] == [5, 2]
    assert torch.equal(torch.cat([b[0] for b in batches]), x)
    assert torch.equal(torch.cat([b[1] for b in batches]), labels)
    assert torch.cat([b[2] for b in batches]).tolist() == list(range(7))
    assert len(held) == 7


def test_shuffled_samples_say_where_they_were() -> None:
    x, labels = images(7)
    batches = list(samples(3).batches(2, torch.Generator().manual_seed(1)))
    order = torch.cat([b[2] for b in batches])
    assert sorted(order.tolist()) == list(range(7))
    assert order.tolist() != list(range(7))
    assert torch.equal(torch.cat([b[0] for b in batches]), x[order])
    assert torch.equal(torch.cat([b[1] for b in batches]), labels[order])


def test_named_and_paired_inputs_are_joined_too() -> None:
    x, _ = images(7)
    ((named, _, _),) = samples(3, inputs={"a": x, "b": 2 * x}).batches(7)
    ((paired, _, _),) = samples(3, inputs=(x, 2 * x)).batches(7)
    assert torch.equal(named["b"], 2 * x)
    assert torch.equal(paired[1], 2 * x)


def test_the_order_of_the_keys_does_not_matter() -> None:
    x, labels = images(4)
    batches = [({"a": x[:2], "b": labels[:2]}, labels[:2]), ({"b": labels[2:], "a": x[2:]}, labels[2:])]
    ((named, _, _),) = Samples(batches).batches(4)
    assert torch.equal(named["a"], x)


RAGGED = [(torch.ones(2, 3), torch.tensor([0, 1])), (2 * torch.ones(1, 5), torch.tensor([2]))]


def test_batches_of_different_width_stay_as_they_are() -> None:
    held = Samples.load(RAGGED, "forget", CPU)
    for generator in (None, torch.Generator().manual_seed(1), torch.Generator().manual_seed(3)):
        batches = list(held.batches(64, generator))
        assert sorted(b[0].shape for b in batches) == [(1, 5), (2, 3)]
        for inputs, labels, positions in batches:
            assert torch.equal(held.labels[positions], labels)
            assert inputs[0, 0] == (2 if 2 in positions else 1)


def test_samples_are_a_loader_of_themselves() -> None:
    assert [len(labels) for _, labels in samples(7).pairs(4)] == [4, 3]
    assert len(list(checked(samples(7).pairs(4), "forget"))) == 2


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_digest_does_not_depend_on_order_or_batching(size: int) -> None:
    shuffled = samples(size, torch.tensor([6, 2, 0, 1, 5, 4, 3])).digests("key")
    assert sorted(shuffled) == sorted(samples(7).digests("key"))


def test_digests_are_in_the_order_of_the_samples_however_many_there_are() -> None:
    x, labels = torch.randn(3 * DIGESTED + 5, 2), torch.arange(3 * DIGESTED + 5)
    together = Samples([(x, labels)]).digests("key")
    assert together == tuple(d for one in zip(x.split(1), labels.split(1), strict=True) for d in digest(*one))


def digest(inputs: Any, labels: Tensor) -> tuple[str, ...]:
    return Samples([(inputs, labels)]).digests("key")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_digest_is_that_of_shapes_types_and_bytes(dtype: torch.dtype) -> None:
    """Gram files hold digests: what was forgotten must be known again for ever."""
    x, mask, labels = torch.arange(12).view(2, 3, 2).to(dtype), torch.zeros(2, 0), torch.tensor([3, 1])
    expected = []
    for i in range(2):
        sample = hashlib.blake2b(key=b"key", digest_size=16)
        for value in (x[i], mask[i], labels[i]):
            sample.update(f"{tuple(value.shape)}{value.dtype}".encode())
            sample.update(bytes(value.reshape(-1).view(torch.uint8).tolist()))
        expected.append(sample.hexdigest())
    assert digest((x, mask), labels) == tuple(expected)


def test_the_digest_depends_on_the_key() -> None:
    assert not set(samples(7).digests("one")) & set(samples(7).digests("two"))


def test_the_digest_depends_on_every_sample_and_label() -> None:
    x, labels = images(7)
    altered = x.clone()
    altered[3, 1, 4, 4] += 1e-12
    other = labels.clone()
    other[0] = 2
    swapped = labels.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    digests = [digest(x, labels), digest(altered, labels), digest(x, other), digest(x, swapped)]
    digests += [digest(x[:6], labels[:6]), digest(torch.cat([x, x[:1]]), torch.cat([labels, labels[:1]]))]
    assert len(set(digests)) == len(digests)


def test_the_digest_tells_apart_shapes_types_and_where_one_input_ends() -> None:
    labels = torch.tensor([0, 1])
    ones, zeros = torch.ones(2, 4), torch.zeros(2, 4)
    digests = [digest(zeros, labels), digest(zeros.reshape(2, 2, 2), labels), digest(zeros.int(), labels)]
    digests += [digest((ones[:, :1], ones[:, 1:]), labels), digest((ones[:, :2], ones[:, 2:]), labels)]
    assert len(set(digests)) == len(digests)


def test_the_digest_is_the_same_for_either_order_of_keys() -> None:
    x, labels = images(4)
    assert digest({"a": x, "b": labels}, labels) == digest({"b": labels, "a": x}, labels)


def test_samples_of_every_type_have_a_digest() -> None:
    x, labels = images(4)
    made = {digest(x.to(t), labels) for t in (torch.bfloat16, torch.half, torch.float32, torch.uint8, torch.bool)}
    assert len(made) == 5
