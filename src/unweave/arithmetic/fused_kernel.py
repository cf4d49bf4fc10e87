"""The kernel of :mod:`unweave.arithmetic.fused`. Imports Triton, so it is imported only where that is installed."""

import triton
import triton.language as tl


@triton.jit
def windows_to_points(
    maps,
    transform,
    out,
    first_y,
    first_x,
    height,
    width,
    tiles_y,
    tiles_x,
    groups,
    all_groups,
    own_group,
    count,
    channels,
    by_sample,
    by_group,
    by_channel,
    by_y,
    by_x,
    STEP_Y: tl.constexpr,
    STEP_X: tl.constexpr,
    WINDOW_Y: tl.constexpr,
    WINDOW_X: tl.constexpr,
    POINTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILES: tl.constexpr,
):
    """out[point, own_group + g, k, c] = Σ over pixels w of transform[point, w] · maps[n, g, c, w of tile k].

    A program sees to TILES tiles of CHANNELS channels; tile k is (n, y, x) in this order. ``by_…`` are strides of maps.
    """
    blocks = tl.cdiv(channels, CHANNELS)
    group = tl.program_id(1) // blocks
    channel = (tl.program_id(1) % blocks) * CHANNELS + tl.arange(0, CHANNELS)
    point, pixel = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    matrix = tl.load(transform + point[:, None] * COLUMNS + pixel[None, :])
    rows = (point.to(tl.int64) * all_groups + own_group + group) * count
    for i in range(TILES):
        k = tl.program_id(0) * TILES + i
        sample, tile = k // (tiles_y * tiles_x), k % (tiles_y * tiles_x)
        y = (tile // tiles_x) * STEP_Y + first_y + pixel // WINDOW_X
        x = (tile % tiles_x) * STEP_X + first_x + pixel % WINDOW_X
        inside = (pixel < WINDOW_Y * WINDOW_X) & (y >= 0) & (y < height) & (x >= 0) & (x < width) & (k < count)
        start = maps + sample.to(tl.int64) * by_sample + group * by_group
        here = start + (y * by_y + x * by_x)[:, None] + channel[None, :] * by_channel
        pixels = tl.load(here, mask=inside[:, None] & (channel < channels)[None, :], other=0.0)
        values = tl.dot(matrix, pixels.to(tl.float64), out_dtype=tl.float64)
        there = out + ((rows + k) * channels)[:, None] + channel[None, :]
        tl.store(there, values, mask=(point < POINTS)[:, None] & (channel < channels)[None, :] & (k < count))
