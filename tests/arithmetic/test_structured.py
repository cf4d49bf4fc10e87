"""The Gram of a convolution from correlations of its maps, against explicit patches, and the choice between the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import oracles
import pytest
import torch
from helpers import gap, gram_of_rows, images, in_batches, layer_grams, small_cnn, sums_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_layers import CONVS, convolutions, normal
from torch import Tensor, nn

import unweave
from unweave.arithmetic import correlate, fused
from unweave.arithmetic.correlate import Correlation, scheme
from unweave.arithmetic.patches import Axis, Patches
from unweave.arithmetic.pixels import PixelSums, pixels_seen
from unweave.arithmetic.products import mirrored
from unweave.arithmetic.routes import overlap, quickest
from unweave.arithmetic.structured import PatchSums, add_cells

EXACT = 1e-10
ROOT = Path(__file__).parents[2]


def forced(way: str) -> Any:
    """Take one way whatever the rule says."""
    return mock.patch("unweave.fitting.sums.quickest", return_value=way)


@st.composite
def large_convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Kernels up to 7 and maps of several tiles, with room for every phase."""
    axes = draw(st.integers(1, 2))
    per_axis = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(axes))  # noqa: E731
    kernel, dilation, size, sides = per_axis(1, 7), per_axis(1, 4), per_axis(1, 19), per_axis(0, 4)
    for k, d, s, p in zip(kernel, dilation, size, sides, strict=True):
        assume(s + 2 * p > d * (k - 1))
    conv = CONVS[axes](
        2, 2, kernel, stride=per_axis(1, 4), padding=sides, dilation=dilation, groups=draw(st.integers(1, 2))
    )
    return conv.double(), normal(2, 2, *size)


# ------------------------------------------------------------------------------------------------------------ the sums


@pytest.mark.parametrize("r", range(1, 12))
def test_the_scheme_is_a_correlation(r: int) -> None:
    of_tile, of_window, of_offset = scheme(r)
    tile, window = normal(of_tile.shape[1]), normal(of_window.shape[1], seed=1)
    found = of_offset.T @ ((of_tile @ tile) * (of_window @ window))
    expected = torch.stack([(tile * window[e : e + len(tile)]).sum() for e in range(r)])
    assert gap(found, expected) < 1e-13


@pytest.mark.parametrize("way", ["correlations", "patches", "pixels"])
@settings(max_examples=120)  # a large space of geometries, and quick
@given(case=convolutions())
def test_every_way_gives_the_gram_of_all_patches(way: str, case: tuple[nn.Module, Tensor]) -> None:
    conv, x = case
    with forced(way):
        assert gap(layer_grams(conv, (x,))[""], gram_of_rows(oracles.conv_rows(conv, x))) < EXACT


@settings(max_examples=120)  # a large space of geometries, and quick
@given(case=large_convolutions())
def test_large_kernels_and_maps_of_many_tiles(case: tuple[nn.Module, Tensor]) -> None:
    conv, x = case
    rows = oracles.conv_rows(conv, x)
    with forced("correlations"):
        assert gap(layer_grams(conv, (x,))[""], rows.mT @ rows) < EXACT


@pytest.mark.parametrize("way", ["correlations", "pixels"])
def test_no_block_is_added_to_twice_at_once(way: str) -> None:
    """A GPU would add in either order, and the same data would not give the same bits."""
    seen: list[list[int]] = []
    conv = nn.Conv2d(3, 2, 3, stride=2, padding=1, dilation=2).double()
    module = {"correlations": "structured", "pixels": "pixels"}[way]
    noted = mock.Mock(side_effect=lambda *call: (seen.append([to for to, _ in call[2]]), add_cells(*call)))
    with forced(way), mock.patch(f"unweave.arithmetic.{module}.add_cells", noted):
        layer_grams(conv, (normal(2, 3, 4, 5),))
    assert seen
    assert all(len(set(blocks)) == len(blocks) for blocks in seen)


@pytest.mark.parametrize("way", ["correlations", "pixels"])
def test_maps_of_any_size_add_up(way: str) -> None:
    conv = nn.Conv2d(3, 2, 3, stride=2, padding=1).double()
    inputs = [normal(2, 3, side, 9 - side % 4, seed=side) for side in (1, 4, 7, 12)]
    with forced(way):
        sums = sums_of(conv, *((x,) for x in inputs))[""]
    rows = torch.cat([oracles.conv_rows(conv, x) for x in inputs], 1)
    assert gap(sums.result(), rows.mT @ rows) < EXACT
    assert sums.rows == rows.shape[1]


def test_two_geometries_of_one_weight_and_all_ways_add_up() -> None:
    net = nn.ModuleList([nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(3, 2, 3, dilation=2)]).double()
    net[1].weight = net[0].weight
    net.forward = lambda x: (net[0](x), net[1](x))  # type: ignore[method-assign]
    small, middle, large = normal(2, 3, 5, 5), normal(2, 3, 6, 6), normal(2, 3, 9, 9)
    ways = {5: "pixels", 6: "patches", 9: "correlations"}
    with mock.patch("unweave.fitting.sums.quickest", lambda patches: ways[patches.maps.shape[-1]]):
        found = layer_grams(net, (small,), (middle,), (large,))["0"]
    rows = torch.cat([oracles.conv_rows(conv, x) for conv in net for x in (small, middle, large)], 1)
    assert gap(found, rows.mT @ rows) < EXACT


@pytest.mark.parametrize("way", ["correlations", "pixels"])
def test_patches_count_as_often_as_they_are_told(way: str) -> None:
    conv, x = nn.Conv2d(3, 2, 3, padding=1).double(), normal(2, 3, 6, 6)
    patches = Patches.of(conv, x)
    sums = (
        PatchSums(patches.axes, 1, 3, x.device)
        if way == "correlations"
        else PixelSums(patches.axes, (6, 6), 1, 3, x.device)
    )
    sums.add(patches, times=3)
    rows = oracles.conv_rows(conv, x)
    assert gap(sums.gram(), 3 * rows.mT @ rows) < EXACT


@pytest.mark.parametrize("way", ["correlations", "pixels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_maps_of_low_precision_are_multiplied_in_float64(way: str, dtype: torch.dtype) -> None:
    conv, x = nn.Conv2d(3, 2, 3, padding=1).to(dtype), normal(4, 3, 9, 9).to(dtype)
    rows = oracles.conv_rows(conv, x)
    with forced(way):
        assert gap(layer_grams(conv, (x,))[""], rows.mT @ rows) < 1e-13


def test_stride_one_reads_a_strided_convolution_at_every_pixel() -> None:
    conv, x = nn.Conv2d(3, 2, 3, stride=2, padding=1).double(), normal(4, 3, 9, 9)
    patches = Patches.of(conv, x, strided=False)
    sums = PatchSums(patches.axes, 1, 3, x.device)
    sums.add(patches)
    rows = oracles.conv_rows(nn.Conv2d(3, 2, 3, padding=1), x)
    assert gap(sums.gram(), rows.mT @ rows) < EXACT


@pytest.mark.parametrize("size", [1, 2, 5])
def test_grams_subtract_and_the_batch_size_does_not_matter(size: int) -> None:
    net, (x, labels) = small_cnn(), images(12)
    with forced("correlations"):
        full = unweave.fit(net, in_batches(x, labels, 12))
        again = unweave.fit(net, in_batches(x, labels, 12))
        retain = full - unweave.fit(net, in_batches(x[:5], labels[:5], size))
        expected = unweave.fit(net, in_batches(x[5:], labels[5:], size))
    assert full == again
    assert full.layers == unweave.fit(net, in_batches(x, labels, 4)).layers
    for name in full:
        assert gap(retain[name], expected[name]) < EXACT
        assert torch.equal(full[name], full[name].mT)


def test_infinite_maps_are_refused() -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(50, 3)).double()
    with forced("correlations"):
        sums = sums_of(net, (torch.full((4, 2, 5, 5), float("inf")).double(),), layers=["0"])
    with pytest.raises(unweave.errors.ModelError, match=r"'0' was given NaN or infinite"):
        sums["0"].result()


# ----------------------------------------------------------------------------------------------------------- the memory


@pytest.mark.parametrize("budget", [1, 300, 5000])
@pytest.mark.parametrize("stride", [1, 2])
def test_chunks_add_up_and_stay_below_their_bound(budget: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = nn.Conv2d(4, 2, 3, stride=stride, padding=1, groups=2).double(), normal(5, 4, 17, 6)
    with forced("correlations"):
        whole = layer_grams(conv, (x,))[""]
        sizes: list[int] = []
        points = Correlation._points

        def noting(self: Correlation, *args: Any) -> Tensor:
            result = points(self, *args)
            sizes.append(result.numel() // (len(self.of_tile) * self.groups * 2 * -(-6 // 4)))
            return result

        monkeypatch.setitem(correlate.CHUNK_ELEMENTS, "cpu", budget)
        monkeypatch.setattr(Correlation, "_points", noting)
        assert gap(layer_grams(conv, (x,))[""], whole) < EXACT
    # One line of tiles of one sample is the least there can be.
    assert budget > 1 or max(sizes) <= 1


def test_correlations_take_a_fifth_of_the_memory_and_no_more_for_more_samples() -> None:
    from benchmarks.memory import peak_bytes

    conv = nn.Conv2d(128, 1, 3, padding=1)

    def peak(samples: int, way: str) -> int:
        x = torch.ones(samples, 128, 8, 8)
        sums = sums_of(conv)[""]
        with forced(way):
            sums.add(Patches.of(conv, x))
            return peak_bytes(lambda: sums.add(Patches.of(conv, x)), "cpu")

    with torch.no_grad():
        few = peak(128, "correlations")
        assert peak(256, "correlations") == few
        assert 5 * few <= peak(128, "patches")


# ----------------------------------------------------------------------------------------------------------- the choice


def measured(device: str) -> list[dict[str, Any]]:
    file = ROOT / "results" / f"bench-gram-{device}.json"
    return json.loads(file.read_text("utf-8"))["cases"] if file.exists() else []


def patches_like(geometry: dict[str, int]) -> Patches:
    g = geometry
    padding = g["dilation"] * (g["kernel"] // 2)
    conv = nn.Conv2d(
        g["C"], g["groups"], g["kernel"], g["stride"], padding, g["dilation"], groups=g["groups"], device="meta"
    )
    return Patches.of(conv, torch.empty(g["N"], g["C"], g["side"], g["side"], device="meta"))


@pytest.mark.parametrize("device, triton", [("cpu", False), ("cuda", False), ("cuda", True)])
def test_correlations_are_never_chosen_where_they_were_measured_to_be_slower(
    device: str, triton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: triton)  # the prices of a GPU, also where there is none
    cases = measured(device)
    if not cases:
        pytest.skip(f"not measured on {device}")
    chosen = [case for case in cases if quickest(patches_like(case["geometry"]), device) == "correlations"]
    assert chosen
    assert [case["geometry"] for case in chosen if case["ratio"] < 1] == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pixels_are_never_chosen_where_they_were_measured_to_be_slower(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: True)
    cases = [case for case in measured(device) if "pixels" in case["seconds"]]
    if not cases:
        pytest.skip(f"not measured on {device}")
    chosen = [case for case in cases if quickest(patches_like(case["geometry"]), device) == "pixels"]
    assert chosen
    slower = [case for case in chosen if case["seconds"]["pixels"] > 1.05 * min(case["seconds"].values())]
    assert [case["geometry"] for case in slower] == []


@pytest.mark.parametrize("channels", [128, 256, 512])
@pytest.mark.parametrize("side", [8, 16, 32])
def test_wide_three_by_three_convolutions_are_correlated(channels: int, side: int) -> None:
    geometry = {"N": 64, "C": channels, "side": side, "kernel": 3, "stride": 1, "dilation": 1, "groups": 1}
    assert quickest(patches_like(geometry), "cpu") == "correlations"


@pytest.mark.parametrize("change", [{"kernel": 1}, {"C": 3}, {"groups": 128}])
def test_where_there_is_little_to_gain_patches_are_taken(change: dict[str, int]) -> None:
    geometry = {"N": 8, "C": 128, "side": 8, "kernel": 3, "stride": 1, "dilation": 1, "groups": 1} | change
    assert quickest(patches_like(geometry), "cpu") == "patches"


@pytest.mark.parametrize("stride", range(1, 7))
@pytest.mark.parametrize("dilation", range(1, 4))
@pytest.mark.parametrize("kernel", range(1, 6))
def test_outputs_overlap_where_two_of_them_see_one_pixel(kernel: int, dilation: int, stride: int) -> None:
    axis = Axis(kernel, stride, dilation, 0, 0)
    seen = [{axis.pixel(tap, output) for tap in range(kernel)} for output in range(20)]
    assert overlap(axis) == any(seen[0] & other for other in seen[1:])


def test_patches_without_overlap_are_not_priced_as_correlations() -> None:
    """A vision transformer's first layer has 33,000 pairs of phases: to price them took half a second a batch."""
    patches = Patches.of(nn.Conv2d(3, 8, 16, stride=16), torch.empty(4, 3, 224, 224, device="meta"))
    with mock.patch("unweave.arithmetic.routes.work_of_correlations", side_effect=AssertionError):
        assert quickest(patches, "cuda") == "patches"


def test_the_way_is_chosen_once_for_all_batches_of_a_shape() -> None:
    conv = nn.Conv2d(3, 2, 3, padding=1).double()
    with mock.patch("unweave.fitting.sums.quickest", side_effect=quickest) as asked:
        sums_of(conv, *((normal(n, 3, side, side),) for n, side in ((2, 8), (2, 8), (1, 8), (2, 9), (2, 8))))
    assert asked.call_count == 3


@pytest.mark.parametrize("device", ["cpu", "cuda", "split"])
@pytest.mark.parametrize("change", [{}, {"side": 1}, {"stride": 2, "side": 3}, {"C": 16}, {"groups": 4}])
def test_maps_of_few_pixels_are_multiplied_whole(change: dict[str, int], device: str) -> None:
    geometry = {"N": 2048, "C": 128, "side": 2, "kernel": 3, "stride": 1, "dilation": 1, "groups": 1} | change
    assert quickest(patches_like(geometry), device) == "pixels"


@pytest.mark.parametrize("change", [{"N": 4}, {"kernel": 5}, {"side": 6}])
def test_pixels_are_not_taken_where_taking_them_apart_would_cost_more(change: dict[str, int]) -> None:
    geometry = {"N": 2048, "C": 128, "side": 4, "kernel": 3, "stride": 1, "dilation": 1, "groups": 1}
    assert quickest(patches_like(geometry), "cuda") == "pixels"
    assert quickest(patches_like(geometry | change), "cuda") != "pixels"


def test_pixels_of_one_size_only_are_held() -> None:
    conv = nn.Conv2d(3, 2, 3, padding=1).double()
    inputs = [normal(2, 3, side, side, seed=side) for side in (2, 3, 4, 2)]
    with forced("pixels"):
        sums = sums_of(conv, *((x,) for x in inputs))[""]
    assert len(sums.maps) == 1
    rows = torch.cat([oracles.conv_rows(conv, x) for x in inputs], 1)
    assert gap(sums.result(), rows.mT @ rows) < EXACT


def test_sums_of_pixels_may_be_looked_at_and_go_on() -> None:
    conv, x = nn.Conv2d(300, 1, 3, padding=1).double(), normal(3, 300, 2, 2)  # several blocks of the Gram
    patches = Patches.of(conv, x)
    sums = PixelSums(patches.axes, (2, 2), 1, 300, x.device)
    sums.add(patches)
    first = sums.gram()
    sums.add(patches)
    assert gap(sums.gram(), 2 * first) < EXACT


def test_pixels_beyond_the_border_are_seen_by_no_tap() -> None:
    seen = pixels_seen([Axis(kernel=3, stride=1, dilation=1, before=1, after=1), Axis(2, 2, 1, 0, 0)], [2, 4])
    assert seen[0] == {2: 0, 3: 1, 4: 4, 5: 5}  # output (0, 0): taps (1, ·) are line 0, taps (2, ·) line 1
    assert seen[3] == {0: 2, 1: 3, 2: 6, 3: 7}  # output (1, 1): taps (0, ·) are line 0, taps (1, ·) line 1
    assert len(seen) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a GPU additions may come in any order")
@pytest.mark.parametrize("way", ["correlations", "patches", "pixels"])
def test_a_gpu_finds_the_same_bits_every_time(way: str) -> None:
    conv = nn.Conv2d(64, 8, 3, padding=1).cuda()
    x = torch.randn(256, 64, 4, 4, generator=torch.Generator().manual_seed(0)).cuda()
    with forced(way):
        first, *more = (layer_grams(conv, (x,))[""] for _ in range(5))
    assert all(torch.equal(first, other) for other in more)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a kernel for GPUs")
@pytest.mark.parametrize(
    "conv, shape",
    [
        (nn.Conv2d(5, 4, 3, padding=1), (9, 5, 7, 6)),
        (nn.Conv2d(70, 4, 3, stride=2, padding=1, groups=2), (3, 70, 18, 19)),
        (nn.Conv1d(40, 3, 3, padding=1), (3, 40, 31)),
        (nn.Conv2d(4, 4, 5, dilation=2, padding=2), (2, 4, 22, 19)),
        (nn.Conv2d(3, 4, (3, 1), stride=(1, 2)), (2, 3, 9, 8)),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_fused_kernel_finds_the_same_sums(
    conv: nn.Module, shape: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to("cuda", dtype)
    x = x.contiguous(memory_format=layout) if x.dim() == 4 else x
    patches = Patches.of(conv, x)
    rows = torch.cat([chunk.double() for chunk in patches], 1)
    sums = PatchSums(patches.axes, patches.groups, patches.maps.shape[2], x.device)
    with mock.patch.object(correlate, "points_of", side_effect=fused.points_of) as used:
        sums.add(patches)
    assert used.called
    torch.testing.assert_close(mirrored(sums.gram()), rows.mT @ rows, rtol=1e-12, atol=1e-12 * float(rows.norm()) ** 2)


@pytest.mark.parametrize("found", [RuntimeError("Failed to find C compiler.\nAnd more."), torch.zeros(48, 1, 1)])
def test_a_triton_that_cannot_build_the_kernel_is_left_out_with_the_reason(
    found: Exception | torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = isinstance(found, Exception)
    points_of = mock.Mock(side_effect=found if raised else None, return_value=found)
    monkeypatch.setattr(fused.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fused, "points_of", points_of)
    trial = fused._try_out
    monkeypatch.setattr(fused, "_try_out", lambda device: trial("cpu"))
    with pytest.warns(UserWarning, match="here: Failed to find C compiler.. The" if raised else "result is wrong"):
        assert not fused.has_triton.__wrapped__()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_fused_kernel_runs_where_the_maps_are() -> None:
    x = torch.randn(2, 5, 7, 6, generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cuda:0", "cuda:1"):
        patches = Patches.of(nn.Conv2d(5, 4, 3, padding=1), x.to(device))
        sums = PatchSums(patches.axes, patches.groups, patches.maps.shape[2], patches.maps.device)
        sums.add(patches)
        found.append(sums.gram().cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
