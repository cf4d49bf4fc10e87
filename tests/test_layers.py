from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import oracles
import pytest
import torch
from helpers import gap, gram_of_rows, images, in_batches, layer_grams, sums_of, token_classifier
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

import unweave
from unweave.errors import ConfigError, LayerError, ModelError
from unweave.layers import as_matrix, find_layers, from_matrix, kind_of
from unweave.reading.rest import at_rest, unwrap

EXACT = 1e-10

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSES = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def library_rows(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The rows the registry reads from one call, [groups, n, d] by the path of their weight."""
    with at_rest(module):
        chunks = {path: rows() for path, rows in kind_of(module).taps(module, args, kwargs)}
        whole = {path: rows if isinstance(rows, Tensor) else torch.cat(list(rows), 1) for path, rows in chunks.items()}
    return {path: rows if rows.dim() == 3 else rows[None] for path, rows in whole.items()}


def hidden_change(rows: Tensor, layer: Any, seed: int = 1) -> Tensor:
    """A random ΔW that rows [groups, n, d] do not see, in the weight's shape, by way of a pseudo-inverse."""
    change = normal(*as_matrix(layer.parameter, layer.kind.layout, layer.groups, layer.d).shape, seed=seed)
    change = change - change @ torch.linalg.pinv(rows) @ rows
    return from_matrix(change, layer.kind.layout, layer.weight_shape)


def assert_hidden_change_leaves_output(module: nn.Module, rows: Tensor, call: Callable[[], Tensor], name: str) -> None:
    layer = find_layers(module)[name]
    with at_rest(module):
        before = call().clone()
        layer.parameter.add_(hidden_change(rows, layer))
        after = call()
    assert (after - before).abs().max() < EXACT * before.abs().max().clamp_min(1)


# ------------------------------------------------------------------------------------------------------------- linear


@given(
    leading=st.lists(st.integers(1, 4), max_size=3),
    width=st.integers(1, 7),
    out=st.integers(1, 4),
    bias=st.booleans(),
)
def test_linear_sees_every_input_vector(leading: list[int], width: int, out: int, bias: bool) -> None:
    linear = nn.Linear(width, out, bias=bias).double()
    x = normal(*leading, width)
    vectors = torch.stack([x[i] for i in itertools.product(*map(range, leading))])[None]
    assert gap(layer_grams(linear, (x,))[""], gram_of_rows(vectors)) < EXACT
    rows = library_rows(linear, x)[""]
    product = rows[0] @ linear.weight.T + (linear.bias if bias else 0)
    assert gap(product, linear(x).reshape(-1, out)) < EXACT
    assert_hidden_change_leaves_output(linear, vectors, lambda: linear(x), "")


@given(leading=st.lists(st.integers(1, 4), min_size=1, max_size=2), width=st.integers(1, 6), out=st.integers(1, 4))
def test_hugging_face_conv1d_sees_every_input_vector(leading: list[int], width: int, out: int) -> None:
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(out, width).double()
    x = normal(*leading, width)
    vectors = torch.stack([x[i] for i in itertools.product(*map(range, leading))])[None]
    assert gap(layer_grams(layer, (x,))[""], gram_of_rows(vectors)) < EXACT
    matrix = as_matrix(layer.weight, "in-first", 1, width)
    assert gap(library_rows(layer, x)[""][0] @ matrix[0].T + layer.bias, layer(x).reshape(-1, out)) < EXACT
    assert_hidden_change_leaves_output(layer, vectors, lambda: layer(x), "")


# -------------------------------------------------------------------------------------------------------- convolution


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A convolution of any geometry that PyTorch allows, and an input for it, batched or not."""
    axes = draw(st.integers(1, 3))
    per_axis = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(axes))  # noqa: E731
    groups = draw(st.sampled_from([1, 2, 3]))
    channels = groups * draw(st.integers(1, 2))
    kernel, dilation, size = per_axis(1, 3), per_axis(1, 2), per_axis(1, 6 if axes < 3 else 4)
    padding = draw(st.sampled_from(["same", "valid", "sides"]))
    sides = per_axis(0, 2) if padding == "sides" else padding
    stride = (1,) * axes if padding == "same" else per_axis(1, 3)
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    conv = CONVS[axes](
        channels,
        groups * draw(st.integers(1, 2)),
        kernel,
        stride=stride,
        padding=sides,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    for axis in range(axes):
        before, after = oracles._sides(conv, axis)
        # A reflection needs one pixel more than it reflects, a circle as many; then the kernel must fit.
        assume(mode != "reflect" or after < size[axis])
        assume(mode != "circular" or after <= size[axis])
        assume(size[axis] + before + after > dilation[axis] * (kernel[axis] - 1))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    return conv.double(), normal(*batch, channels, *size)


@settings(max_examples=120)  # a large space of geometries, and quick
@given(convolutions())
def test_convolution_sees_every_padded_patch(case: tuple[nn.Module, Tensor]) -> None:
    conv, x = case
    rows = oracles.conv_rows(conv, x)
    assert gap(layer_grams(conv, (x,))[""], gram_of_rows(rows)) < EXACT


@settings(max_examples=120)  # a large space of geometries, and quick
@given(convolutions())
def test_convolution_is_rows_times_matrix(case: tuple[nn.Module, Tensor]) -> None:
    conv, x = case
    with torch.no_grad():
        matrix = conv.weight.reshape(conv.groups, -1, conv.weight[0].numel())
        product = library_rows(conv, x)[""] @ matrix.mT  # [groups, n, out / groups]
        output = conv(x if x.dim() == conv.weight.dim() else x[None])
        expected = output.movedim(1, -1).reshape(-1, conv.out_channels)
        bias = 0 if conv.bias is None else conv.bias
        assert gap(product.movedim(0, 1).reshape(-1, conv.out_channels) + bias, expected) < EXACT


@settings(max_examples=120)  # a large space of geometries, and quick
@given(convolutions())
def test_convolution_does_not_notice_a_change_in_the_null_space(case: tuple[nn.Module, Tensor]) -> None:
    conv, x = case
    assert_hidden_change_leaves_output(conv, oracles.conv_rows(conv, x), lambda: conv(x), "")


def test_convolution_agrees_with_unfold() -> None:
    conv = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)).double()
    x = normal(5, 3, 8, 7)
    unfolded = nn.functional.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1))
    rows = unfolded.mT.reshape(1, -1, 18)
    assert gap(layer_grams(conv, (x,))[""], rows.mT @ rows) < EXACT


@pytest.mark.parametrize("patch_elements", [1, 50, 300, 5000, 10**6])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_chunks_of_patches_add_up_to_the_same_gram(
    axes: int, patch_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = CONVS[axes](4, 2, 3, stride=2, padding=1, groups=2).double()
    x = normal(3, 4, *(5,) * axes)
    whole = layer_grams(conv, (x,))[""]
    monkeypatch.setattr(unweave.arithmetic.patches, "PATCH_ELEMENTS", {"cpu": patch_elements})
    chunks = list(kind_of(conv).taps(conv, (x,), {})[0][1]())
    assert len(chunks) == 1 if whole.shape[1] * 9 * 3**axes < patch_elements else len(chunks) > 1
    assert gap(layer_grams(conv, (x,))[""], whole) < EXACT


def test_chunks_of_rows_add_up_to_the_same_gram(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, x = nn.Linear(5, 2).double(), normal(7, 3, 5)
    whole = layer_grams(linear, (x,))[""]
    monkeypatch.setattr("unweave.arithmetic.products.ROW_ELEMENTS", {"cpu": 12})
    assert gap(layer_grams(linear, (x,))[""], whole) < EXACT


def test_memory_format_does_not_matter() -> None:
    conv, x = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2).double(), normal(3, 4, 7, 6)
    expected = layer_grams(conv, (x,))[""]
    conv = conv.to(memory_format=torch.channels_last)
    assert gap(layer_grams(conv, (x.to(memory_format=torch.channels_last),))[""], expected) < EXACT
    change = normal(*conv.weight.shape).to(memory_format=torch.channels_last)
    matrix = as_matrix(change, "out-first", 2, 18)
    assert torch.equal(from_matrix(matrix, "out-first", change.shape), change)


def test_expanded_and_strided_inputs_are_read_right() -> None:
    conv = nn.Conv2d(2, 1, 2).double()
    view = normal(2, 9, 9)[None].expand(3, 2, 9, 9)[:, :, ::2, 1:8]
    assert gap(layer_grams(conv, (view,))[""], gram_of_rows(oracles.conv_rows(conv, view))) < EXACT


# --------------------------------------------------------------------------------------------- transposed convolution


@st.composite
def transposed(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    axes = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 2]))
    channels = groups * draw(st.integers(1, 3))
    stride = draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 2))
    layer = TRANSPOSES[axes](
        channels,
        groups * draw(st.integers(1, 2)),
        draw(st.integers(2, 3)),
        stride=stride,
        padding=draw(st.integers(0, 1)),
        output_padding=draw(st.integers(0, max(stride, dilation) - 1)),
        groups=groups,
        dilation=dilation,
    )
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    return layer.double(), normal(*batch, channels, *(draw(st.integers(2, 3)) for _ in range(axes)))


@given(transposed())
def test_transposed_convolution_sees_the_channels_of_every_pixel(case: tuple[nn.Module, Tensor]) -> None:
    layer, x = case
    rows = oracles.pixel_rows(layer, x)
    assert gap(layer_grams(layer, (x,))[""], gram_of_rows(rows)) < EXACT
    assert_hidden_change_leaves_output(layer, rows, lambda: layer(x), "")


def test_a_change_that_one_pixel_sees_moves_a_transposed_convolution() -> None:
    """The null-space test above could pass with rows that are too many; this one fails if they are."""
    layer, x = nn.ConvTranspose2d(4, 2, 3, stride=2).double(), normal(1, 4, 1, 2)
    gram = layer_grams(layer, (x,))[""][0]
    assert torch.linalg.matrix_rank(gram) == 2


# ---------------------------------------------------------------------------------------------------------- embedding


@given(
    ids=st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=4),
    padded=st.booleans(),
)
def test_embedding_counts_its_ids(ids: list[list[int]], padded: bool) -> None:
    embedding = nn.Embedding(7, 3, padding_idx=0 if padded else None).double()
    x = torch.tensor(ids)
    counts = [sum(row.count(i) for row in ids) for i in range(7)]
    sums = sums_of(embedding, (x,))[""]
    assert sums.result().flatten().tolist() == counts  # whole numbers, without rounding
    assert sums.rows == x.numel()
    one_hot = torch.stack([(x.reshape(-1) == i).double() for i in range(7)])[:, :, None]
    assert_hidden_change_leaves_output(embedding, one_hot, lambda: embedding(x), "")


def test_an_id_that_only_forgotten_samples_had_is_left_with_exactly_nothing() -> None:
    net = _Mean(nn.Embedding(5, 2).double())
    ids = torch.cat([torch.full((700, 3), 4), torch.randint(4, (300, 3))])
    labels = torch.arange(1000) % 2
    full = unweave.fit(net, in_batches(ids, labels, 999))
    retained = full - unweave.fit(net, in_batches(ids[:700], labels[:700], 6))
    assert retained["inner"][4].item() == 0
    assert retained["inner"].sum().item() == 900
    assert unweave.CoreSpace.from_grams(retained, 0.9).ranks["inner"] == [1, 1, 1, 1, 0]


def test_an_id_that_never_occurs_is_free_to_move() -> None:
    embedding, x = nn.Embedding(5, 2).double(), torch.tensor([[0, 3], [3, 3]])
    space = unweave.CoreSpace.from_grams(unweave.fit(_Mean(embedding), in_batches(x, torch.tensor([0, 1]), 2)), 1.0)
    moved = space.project("inner", torch.ones(5, 2, dtype=torch.float64)).abs().sum(1)
    assert (moved > 0).tolist() == [False, True, True, False, True]


class _Mean(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).mean(1)


# ---------------------------------------------------------------------------------------------------------- attention


@st.composite
def attentions(draw: st.DrawFn) -> tuple[nn.MultiheadAttention, dict[str, Any], Tensor | None]:
    """Attention, the keyword arguments of a call, and the mask of the call as [N, L, S] for the oracle."""
    heads, width = draw(st.sampled_from([(1, 3), (2, 2), (2, 3)]))
    batch, queries, keys = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    first = draw(st.booleans())
    attention = nn.MultiheadAttention(heads * width, heads, bias=draw(st.booleans()), batch_first=first).double()
    if attention.in_proj_bias is not None:
        nn.init.normal_(attention.in_proj_bias)
        nn.init.normal_(attention.out_proj.bias)
    if draw(st.booleans()):
        query = key = value = normal(batch, queries, heads * width)
        keys = queries
    else:
        query = normal(batch, queries, heads * width)
        key, value = (normal(batch, keys, heads * width, seed=i) for i in (1, 2))
    masked = torch.zeros(batch, queries, keys, dtype=torch.bool)
    call: dict[str, Any] = {"need_weights": draw(st.booleans())}
    if draw(st.booleans()):  # no mask hides the first key, so that every query has something to look at
        call["attn_mask"] = torch.rand(queries, keys, generator=torch.Generator().manual_seed(3)) > 0.6
        call["attn_mask"][:, 0] = False
        masked |= call["attn_mask"]
    if draw(st.booleans()):
        call["key_padding_mask"] = torch.rand(batch, keys, generator=torch.Generator().manual_seed(4)) > 0.6
        call["key_padding_mask"][:, 0] = False
        masked |= call["key_padding_mask"][:, None]
    for name, x in (("query", query), ("key", key), ("value", value)):
        call[name] = x if first else x.transpose(0, 1)
    return attention, call, masked


def batch_major(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    return x if attention.batch_first else x.transpose(0, 1)


@given(attentions())
def test_attention_sees_its_queries_keys_and_values(case: tuple[nn.MultiheadAttention, dict[str, Any], Tensor]) -> None:
    attention, call, _ = case
    gram = layer_grams(attention, call)[""]
    for group, name in enumerate(("query", "key", "value")):
        vectors = call[name].reshape(1, -1, attention.embed_dim)
        assert gap(gram[group : group + 1], gram_of_rows(vectors)) < EXACT


@given(attentions())
def test_attention_output_projection_sees_what_the_heads_attend_to(
    case: tuple[nn.MultiheadAttention, dict[str, Any], Tensor],
) -> None:
    attention, call, masked = case
    attention.eval()
    with torch.no_grad():
        inputs = [batch_major(attention, call[name]) for name in ("query", "key", "value")]
        rows = oracles.attended(attention, *inputs, masked).reshape(1, -1, attention.embed_dim)
        assert gap(layer_grams(attention, call)["out_proj"], gram_of_rows(rows)) < 1e-9  # softmax in another order
        captured = library_rows(attention, **call)["out_proj"][0]
        bias = 0 if attention.out_proj.bias is None else attention.out_proj.bias
        output = attention(**call)[0].reshape(-1, attention.embed_dim)
        assert gap(captured @ attention.out_proj.weight.T + bias, output) < EXACT


@given(attentions())
def test_attention_does_not_notice_changes_in_the_null_space(
    case: tuple[nn.MultiheadAttention, dict[str, Any], Tensor],
) -> None:
    attention, call, _ = case
    for name in ("", "out_proj"):
        rows = library_rows(attention, **call)[name]
        assert_hidden_change_leaves_output(attention, rows, lambda: attention(**call)[0], name)


def test_attention_with_extra_keys_still_hands_over_what_its_output_projection_is_given() -> None:
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, dropout=0.5).double().eval()
    x = normal(3, 2, 4)
    with torch.no_grad():
        product = library_rows(attention, x, x, x)["out_proj"][0] @ attention.out_proj.weight.T
        assert gap(product + attention.out_proj.bias, attention(x, x, x)[0].reshape(-1, 4)) < EXACT


def test_attention_called_by_position_and_by_keyword_is_the_same() -> None:
    attention, x = nn.MultiheadAttention(4, 2).double(), normal(3, 2, 4)
    by_position = layer_grams(attention, (x, x, x))
    by_keyword = layer_grams(attention, {"value": x, "key": x, "query": x})
    assert all(torch.equal(by_position[name], by_keyword[name]) for name in ("", "out_proj"))


@pytest.mark.parametrize("mask", [False, True])
def test_the_fused_path_of_a_transformer_does_not_bypass_the_hooks(mask: bool) -> None:
    net, ids = token_classifier(layers=2).eval(), torch.randint(11, (4, 5))
    padding = {"src_key_padding_mask": torch.arange(5)[None] > torch.tensor([[4], [3], [4], [2]])} if mask else {}
    call = {"ids": ids, **padding}
    fused = layer_grams(net, call)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        plain = layer_grams(net, call)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    parts = ("self_attn", "self_attn.out_proj", "linear1", "linear2")
    assert list(fused) == ["embed", *(f"encoder.layers.{i}.{part}" for i in (0, 1) for part in parts), "head"]
    assert all(torch.equal(fused[name], plain[name]) and fused[name].abs().sum() > 0 for name in fused)


# ------------------------------------------------------------------------------------- how layers are called and shared


def test_keyword_input_is_found_wherever_it_stands() -> None:
    layer, x = nn.ConvTranspose1d(2, 1, 3, stride=2).double(), normal(1, 2, 4)
    expected = layer_grams(layer, (x,))[""]
    assert torch.equal(layer_grams(layer, {"output_size": [10], "input": x})[""], expected)


def test_a_module_called_twice_sees_both_inputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x).relu())

    net, x = Twice(), normal(4, 3)
    seen = torch.cat([x, net.inner(x).relu()])[None].detach()
    assert gap(layer_grams(net, (x,))["inner"], gram_of_rows(seen)) < EXACT


def test_a_module_at_two_paths_is_one_layer() -> None:
    inner = nn.Linear(3, 3).double()
    net, x = nn.Sequential(inner, nn.ReLU(), inner), normal(4, 3)
    seen = torch.cat([x, inner(x).relu()])[None].detach()
    grams = layer_grams(net, (x,))
    assert list(grams) == ["0"]
    assert gap(grams["0"], gram_of_rows(seen)) < EXACT


def shared_pair() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)).double()
    net[2].weight = net[0].weight
    return net


def test_a_weight_shared_by_two_modules_has_one_gram_with_the_rows_of_both() -> None:
    net, x = shared_pair(), normal(4, 3)
    seen = torch.cat([x, net[:2](x)])[None].detach()
    grams = layer_grams(net, (x,))
    assert list(grams) == ["0", "3"]
    assert gap(grams["0"], gram_of_rows(seen)) < EXACT


def test_asking_for_one_user_of_a_shared_weight_counts_the_other_too() -> None:
    net, x = shared_pair(), normal(4, 3)
    assert torch.equal(layer_grams(net, (x,), layers=["2"])["0"], layer_grams(net, (x,))["0"])


def test_the_last_k_layers_are_k_weights_however_often_they_are_used() -> None:
    assert list(find_layers(shared_pair(), 2)) == ["0", "3"]


class Tied(nn.Module):
    """The classic language model: the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(ids)))


@pytest.mark.parametrize("asked", [None, ["head"], ["embed", "middle"], 1])
def test_an_embedding_tied_to_a_head_is_refused_by_both_names(asked: Any) -> None:
    with pytest.raises(LayerError, match=r"'embed' \(Embedding\) and 'head' \(Linear\).*layers="):
        find_layers(Tied(), asked)


def test_a_tied_pair_can_be_left_out() -> None:
    assert list(find_layers(Tied(), ["middle"])) == ["middle"]


class Borrower(nn.Module):
    """Uses another layer's weight in a way nobody can read."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.mixer = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.mixer


def test_a_weight_that_an_unknown_module_holds_too_is_refused() -> None:
    first = nn.Linear(3, 3)
    net = nn.Sequential(first, Borrower(first.weight), nn.Linear(3, 2))
    with pytest.raises(LayerError, match=r"'0'.*'1.mixer'.*Borrower.*register.*layers="):
        find_layers(net)
    assert list(find_layers(net, ["2"])) == ["2"]


def test_a_weight_that_a_known_module_holds_as_something_else_is_refused() -> None:
    bilingual = nn.MultiheadAttention(4, 1, kdim=3)
    first = nn.Linear(3, 4, bias=False)
    bilingual.k_proj_weight = first.weight
    with pytest.raises(LayerError, match=r"'0'.*'1.k_proj_weight'"):
        find_layers(nn.Sequential(first, bilingual), ["0"])


# ------------------------------------------------------------------------------------------------------- what is found


def test_a_subclass_is_found_through_the_hierarchy() -> None:
    class Fancy(nn.Linear):
        pass

    x = normal(4, 3)
    net = Fancy(3, 2).double()
    assert gap(layer_grams(net, (x,))[""], gram_of_rows(x[None])) < EXACT


class Standardised(nn.Conv2d):
    """As in several image models: what multiplies the input is not the weight itself."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


def test_a_subclass_with_a_forward_of_its_own_is_refused_until_it_is_registered(registry: None) -> None:
    net, x = nn.Sequential(Standardised(2, 3, 2), nn.Flatten(), nn.Linear(12, 2)).double(), normal(4, 2, 3, 3)
    with pytest.raises(LayerError, match=r"'0'.*Standardised.*forward of its own.*register\(Standardised\)"):
        find_layers(net)
    assert list(layer_grams(net, (x,), layers=["2"])) == ["2"]
    unweave.layers.register(Standardised)
    assert gap(layer_grams(net, (x,))["0"], gram_of_rows(oracles.conv_rows(net[0], x))) < EXACT


def test_a_layer_that_shares_its_weight_with_one_that_is_refused_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 2), Standardised(2, 2, 2))
    net[1].weight = net[0].weight
    with pytest.raises(LayerError, match=r"'1'.*Standardised has a forward of its own"):
        find_layers(net, ["0"])


def test_attention_with_a_forward_of_its_own_does_not_break_a_fit_that_leaves_it_out() -> None:
    class SelfAttention(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x, x, x)[0].mean(1)

    net, x = nn.Sequential(SelfAttention(4, 1, batch_first=True), nn.Linear(4, 2)).double(), normal(3, 5, 4)
    assert list(layer_grams(net, (x,), layers=["1"])) == ["1"]
    with pytest.raises(LayerError, match="SelfAttention has a forward of its own"):
        find_layers(net)


def test_register_without_rows_needs_a_known_base(registry: None) -> None:
    with pytest.raises(ConfigError, match=r"derives from no known type.*rows="):
        unweave.layers.register(Borrower)


def test_an_own_layer_type_needs_one_line(registry: None) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(normal(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (2 * x) @ self.kernel.T

    x = normal(4, 3)
    with pytest.raises(LayerError, match="No layer of a known type in Scaled"):
        find_layers(Scaled())
    unweave.layers.register(Scaled, rows=lambda module, x: 2 * x, weight="kernel")
    assert gap(layer_grams(Scaled(), (x,))[""], gram_of_rows(2 * x[None])) < EXACT


def test_rows_of_the_wrong_width_are_refused(registry: None) -> None:
    class Odd(nn.Linear):
        pass

    unweave.layers.register(Odd, rows=lambda module, x: x[:, 1:])
    with pytest.raises(LayerError, match=r"\[1, 4, 2\].*\[1, n, 3\].*registered"):
        layer_grams(Odd(3, 2).double(), (normal(4, 3),))


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'sideways'.*out-first"):
        unweave.layers.register(Borrower, rows=lambda module, x: x, layout="sideways")


def three_linears() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)).double()


@pytest.mark.parametrize(
    "asked, found", [(["3", "0"], ["0", "3"]), ("2", ["2"]), (2, ["2", "3"]), (9, ["0", "2", "3"])]
)
def test_layers_restricts_and_keeps_the_order_of_the_model(asked: Any, found: list[str]) -> None:
    assert list(find_layers(three_linears(), asked)) == found


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    net = nn.ModuleDict({"stem": nn.Linear(2, 2), "classifier": nn.Linear(2, 2)})
    with pytest.raises(LayerError, match=r"Unknown layer 'clasifier'. Did you mean 'classifier'\?"):
        find_layers(net, ["clasifier"])


@pytest.mark.parametrize("asked", [[], 0, -1, True, [3]])
def test_a_choice_of_layers_that_makes_no_sense_is_refused(asked: Any) -> None:
    with pytest.raises(LayerError, match=r"layers=|k >= 1|Unknown layer"):
        find_layers(three_linears(), asked)


# ----------------------------------------------------------------------------------------------------- what is refused


def parametrised() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))


def weight_normed() -> nn.Module:
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(3, 2))


def pruned() -> nn.Module:
    return prune.l1_unstructured(nn.Linear(3, 2), "weight", 0.5)


def spectrally_normed() -> nn.Module:
    return nn.utils.spectral_norm(nn.Linear(3, 2))


@pytest.mark.parametrize(
    "made, remedy",
    [
        (parametrised, r"remove_parametrizations\(module, 'weight'\)"),
        (weight_normed, r"remove_weight_norm\(module, 'weight'\)"),
        (spectrally_normed, r"remove_spectral_norm\(module, 'weight'\)"),
        (pruned, r"prune\.remove\(module, 'weight'\)"),
        (lambda: nn.LazyLinear(2), "lazy.*Run the model once"),
        (lambda: nn.Embedding(5, 3, max_norm=1.0), "max_norm=None"),
        (lambda: nn.MultiheadAttention(4, 2, kdim=3), "without kdim="),
    ],
)
def test_a_layer_that_cannot_move_is_refused_by_name_with_a_remedy(made: Callable[[], nn.Module], remedy: str) -> None:
    net = nn.ModuleDict({"good": nn.Linear(2, 2), "odd": made()})
    with pytest.raises(LayerError, match=rf"'odd' .*{remedy}.*layers="):
        find_layers(net)
    assert list(find_layers(net, ["good"])) == ["good"]


def test_the_remedy_for_weight_norm_works() -> None:
    net = nn.ModuleDict({"odd": parametrised()})
    nn.utils.parametrize.remove_parametrizations(net["odd"], "weight")
    assert list(find_layers(net)) == ["odd"]


def test_a_layer_that_never_runs_is_refused_by_name() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    batches = in_batches(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), 2)
    with pytest.raises(LayerError, match=r"Not run in the first batch: 'idle' \(Linear\).*layers="):
        unweave.fit(Idle(), batches)
    assert unweave.fit(Idle(), batches, layers=["used"]).names == ["used"]


def test_a_scripted_model_is_refused() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 2), torch.randn(1, 3))
    with pytest.raises(ModelError, match=r"TorchScript.*Pass the module"):
        unweave.fit(scripted, in_batches(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), 2))


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(ModelError, match=r"function.*torch\.nn\.Module"):
        unweave.fit(lambda x: x, [])


# ------------------------------------------------------------------------------------------------- wrapped models


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
        self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def compiled_whole() -> nn.Module:
    return torch.compile(Nested(), backend="eager")


def compiled_part() -> nn.Module:
    net = Nested()
    net.body = torch.compile(net.body, backend="eager")
    net.head = torch.compile(net.head, backend="eager")
    return net


def compiled_in_place() -> nn.Module:
    net = Nested()
    net.compile(backend="eager")
    net.body.compile(backend="eager")
    return net


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("wrap", [compiled_whole, compiled_part, compiled_in_place, lambda: nn.DataParallel(Nested())])
def test_a_wrapped_model_has_the_grams_and_names_of_the_plain_one(wrap: Callable[[], nn.Module], warm: bool) -> None:
    x, labels = images(6)
    plain, net = unweave.fit(Nested(), in_batches(x, labels, 4)), wrap()
    if warm:  # code that was compiled before any hook was there must not be used
        with torch.no_grad():
            net(x)
    wrapped = unweave.fit(net, in_batches(x, labels, 4))
    assert wrapped.names == ["body.0", "body.3", "head"]
    assert wrapped == plain


def test_wrappers_are_taken_off_one_after_the_other() -> None:
    net = nn.Linear(3, 2)
    assert unwrap(nn.DataParallel(torch.compile(net, backend="eager"))) is net


def test_a_bfloat16_model_is_summed_in_float64() -> None:
    net, x = nn.Linear(3, 2).bfloat16(), torch.randn(5, 3).bfloat16()
    gram = layer_grams(net, (x,))[""]
    assert gram.dtype == torch.float64
    assert gap(gram, gram_of_rows(x[None].double())) < EXACT


def test_stride_one_reads_a_strided_convolution_at_every_pixel() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(27, 3)).double()
    x, labels = images(4)
    dense = nn.Conv2d(2, 3, 3, padding=1).double()
    grams = unweave.fit(net, in_batches(x, labels, 2), stride="one")
    assert gap(grams.grouped("0"), gram_of_rows(oracles.conv_rows(dense, x))) < EXACT
    assert gap(grams.grouped("2"), unweave.fit(net, in_batches(x, labels, 2)).grouped("2")) < EXACT


class TiedByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, 5), nn.Linear(5, 5)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.mix(self.embedding(ids).mean(1)).to(self.embedding.weight.dtype)
        return nn.functional.linear(hidden, self.embedding.weight)


def test_a_weight_that_is_also_used_by_hand_is_refused() -> None:
    data = [(torch.arange(12).reshape(6, 2) % 7, torch.arange(6))]
    with pytest.raises(LayerError, match=r"'embedding'.*linear\(\).*layers="):
        unweave.fit(TiedByHand(), data)
    net = TiedByHand()
    assert unweave.fit(net, data, layers=["mix"]).names == ["mix"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
