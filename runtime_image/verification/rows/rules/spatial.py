"""Operators on pictures and signals, [rows, channels, places...]: windows, pools, resizing."""

from __future__ import annotations

from typing import Any

from runtime_image.verification.rows.node import Node, axes_of, untouched
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import ONE, Size, at_least, product
from runtime_image.verification.rows.states import Mixed, Tensor


def rows_first(tensor: Tensor, last: int = 0) -> None:
    """Raise Mixed unless the row axis, if any, is at most `last`."""
    if tensor.state.has_axis and tensor.state.axis > last:
        raise Mixed(f"works along the rows' axis {tensor.state.axis}")


def filters(weights: Tensor) -> None:
    """Raise Mixed if weights may be empty: the kernel then leaves the result uninitialised."""
    if not all(at_least(size, 1) for size in weights.sizes):
        raise Mixed("has weights without places")


def _setting(node: Node) -> tuple[Any, ...]:
    names = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "output_padding")
    found = [node.get(name) for name in (*names, "output_shape", "pads", "strides")]
    return tuple(tuple(value) if isinstance(value, list) else value for value in found)


def window_sizes(node: Node, tensor: Tensor, kernel: list[Size], low: int) -> tuple[Size, ...]:
    """Return the sizes after a window moved over all axes but the first two.

    Each is a symbol with least value `low`; exact for a stride of 1 and for constant sizes.
    """
    places = tensor.sizes[2:]
    count = len(places)
    pads = node.get("pads") or [0] * (2 * count)
    found = []
    for axis, size in enumerate(places):
        stride = (node.get("strides") or [1] * count)[axis]
        reach = (node.get("dilations") or [1] * count)[axis]
        pad = pads[axis] + pads[axis + count]
        exact = None
        if node.get("auto_pad", "NOTSET") == "NOTSET" and node.operator != "ConvTranspose":
            ceiling = node.flag("ceil_mode", 0)
            exact = _moved(size, kernel[axis], reach, pad, stride, ceiling)
        if exact is None:
            width = kernel[axis] if axis < len(kernel) else ONE
            key = ("window", node.operator, size, width, axis, _setting(node))
            exact = node.symbols.derived(key, low)
        found.append(exact)
    return tuple(found)


def _moved(
    size: Size, kernel: Size, reach: int, pad: int, stride: int, ceiling: bool
) -> Size | None:
    last = size + Size.of(pad) - (kernel - ONE) * Size.of(reach) - ONE
    if last.has_rows or stride < 1:
        return None
    if stride == 1 and at_least(last, 0):
        return last + ONE
    if last.constant is not None and last.constant >= 0 and not ceiling:
        return Size.of(last.constant // stride + 1)
    return None


@rule("Conv 1 11 22", "ConvTranspose 1 11 22", "ConvInteger 10")
def convolution(node: Node) -> Tensor:
    """Convolve each row of axis 0; weights have no rows. ORT refuses results without places."""
    tensor, weights = node.tensor(0), node.tensor(1)
    node.without_rows(1, 2, 3)
    rows_first(tensor)
    filters(weights)
    channels = weights.size(0)
    if node.operator == "ConvTranspose":
        channels = weights.size(1) * Size.of(node.get("group", 1))
    places = window_sizes(node, tensor, list(weights.sizes[2:]), 1)
    return Tensor(tensor.state, (tensor.size(0), channels, *places))


@rule(
    "AveragePool 7 10 11 19 22",
    "LpPool 2 11 18 22",
    "MaxPool 1 8 10 11 12 22",
)
def pool(node: Node) -> list[Tensor]:
    """Pool each row and channel. MaxPool's second output counts places over the whole batch."""
    tensor = node.tensor(0)
    rows_first(tensor, 1)
    kernel = [Size.of(size) for size in node.get("kernel_shape", [])]
    dims = (*tensor.sizes[:2], *window_sizes(node, tensor, kernel, 0))
    return [Tensor(tensor.state, dims)]


@rule("GlobalAveragePool 1 22", "GlobalMaxPool 1 22", "GlobalLpPool 2 22")
def whole_pool(node: Node) -> Tensor:
    """Pool all places of each row and channel."""
    tensor = node.tensor(0)
    rows_first(tensor, 1)
    return Tensor(tensor.state, tensor.sizes[:2] + (ONE,) * (tensor.rank - 2))


@rule("InstanceNormalization 6 22", "LRN 1 13", "GroupNormalization 18 21")
def normalization(node: Node) -> Tensor:
    """Normalise over the places, and channels, of each row."""
    tensor = node.tensor(0)
    node.without_rows(1, 2)
    rows_first(tensor)
    return Tensor(tensor.state, tensor.dims)


@rule("DepthToSpace 1 11 13", "SpaceToDepth 1 13")
def blocks(node: Node) -> Tensor:
    """Exchange channels for places."""
    tensor = node.tensor(0)
    rows_first(tensor)
    side = Size.of(node.get("blocksize", 1))
    first, channels, height, width = tensor.sizes
    if node.operator == "DepthToSpace":
        fewer = channels.divided(side * side)
        if fewer is None:
            fewer = node.symbols.derived(("depth", channels, side))
        return Tensor(tensor.state, (first, fewer, height * side, width * side))
    lower = [size.divided(side) for size in (height, width)]
    places = [
        size if size is not None else node.symbols.derived(("block", old, side))
        for size, old in zip(lower, (height, width), strict=True)
    ]
    return Tensor(tensor.state, (first, channels * side * side, *places))


@rule("Upsample 7 9", "Resize 10", reads=())
def upsample(node: Node) -> Tensor:
    """Scale every axis; the row axis must have scale 1."""
    tensor = node.tensor(0)
    node.without_rows(1)
    _not_between(node, tensor)
    scales = node.get("scales") if node.since == 7 else _floats(node, 1)
    return _scaled(node, tensor, scales, list(range(tensor.rank)))


@rule("Resize 11 13 18 19", reads=(3,))
def resize(node: Node) -> Tensor:
    """Resize by scales or to sizes; an axis that keeps its size is not touched."""
    tensor = node.tensor(0)
    node.without_rows(1, 2)
    _not_between(node, tensor)
    axes = axes_of(node.get("axes") or range(tensor.rank), tensor.rank)
    if node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        untouched(tensor.state, axes, "keeps an aspect ratio with")
    if node.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        untouched(tensor.state, axes, "crops along")
    if node.has(3) and node.tensor(3).dims != (Size.of(0),):
        return _sized(node, tensor, node.elements(3), axes)
    return _scaled(node, tensor, _floats(node, 2), axes)


def _not_between(node: Node, tensor: Tensor) -> None:
    """Raise Mixed if the kernel interpolates along the row axis although it keeps its size.

    It does unless the rank is 4 or 5 and the axis one of the first two: 0 times NaN of the next row
    is NaN.
    """
    if node.get("mode", "nearest") == "nearest" or not tensor.state.has_axis:
        return
    if tensor.rank not in (4, 5) or tensor.state.axis > 1:
        raise Mixed("interpolates along every axis, the rows' too")


def _floats(node: Node, position: int) -> Any:
    tensor = node.tensor(position)
    return None if tensor.constant is None else [float(x) for x in tensor.constant.reshape(-1)]


def _sized(node: Node, tensor: Tensor, asked: list[Size], axes: list[int]) -> Tensor:
    dims = list(tensor.sizes)
    if len(asked) != len(axes):
        raise Mixed("has sizes that do not fit its input")
    keeps = node.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    for axis, size in zip(axes, asked, strict=True):
        if size == dims[axis] and keeps:
            continue
        untouched(tensor.state, [axis], "resizes")
        known = size if at_least(size, 1) and keeps else None
        dims[axis] = known or node.symbols.fresh("resized", 1)
    return Tensor(tensor.state, tuple(dims))


def _scaled(node: Node, tensor: Tensor, scales: Any, axes: list[int]) -> Tensor:
    dims = list(tensor.sizes)
    if scales is None:
        untouched(tensor.state, axes, "resizes by unknown scales")
        scales = [None] * len(axes)
    if len(scales) != len(axes):
        raise Mixed("has scales that do not fit its input")
    for axis, scale in zip(axes, scales, strict=True):
        if scale == 1.0:
            continue
        untouched(tensor.state, [axis], "resizes")
        whole = scale is not None and scale == int(scale) and scale >= 1
        whole = whole and node.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        key = ("scaled", dims[axis], scale)
        if whole:
            dims[axis] = dims[axis] * Size.of(int(scale))
        elif scale is None:
            dims[axis] = node.symbols.fresh("scaled", 0)
        else:
            dims[axis] = node.symbols.derived(key, 0)
    return Tensor(tensor.state, tuple(dims))


@rule("GridSample 16 20 22")
def grid_sample(node: Node) -> Tensor:
    """Sample places of each row, at the positions of its own grid."""
    tensor, grid = node.tensor(0), node.tensor(1)
    rows_first(tensor)
    if grid.state != tensor.state:
        raise Mixed("combines rows with a grid that does not have the same rows")
    return Tensor(tensor.state, (*tensor.sizes[:2], *grid.sizes[1:-1]))


@rule("AffineGrid 20", reads=(1,))
def affine_grid(node: Node) -> Tensor:
    """Return a grid for each matrix."""
    matrices = node.tensor(0)
    rows_first(matrices)
    asked = node.elements(1)
    if asked[0] != matrices.size(0):
        raise Mixed("makes grids for another number of rows")
    places = [size if at_least(size, 0) else node.symbols.fresh("grid") for size in asked[2:]]
    return Tensor(matrices.state, (asked[0], *places, Size.of(len(places))))


@rule("Col2Im 18", reads=(1, 2))
def columns_to_image(node: Node) -> Tensor:
    """Add up the overlapping blocks of each row."""
    tensor = node.tensor(0)
    rows_first(tensor)
    image, block = node.elements(1), node.elements(2)
    channels = tensor.size(1).divided(product(block))
    if channels is None:
        channels = node.symbols.fresh("channels")
    sizes = [size if at_least(size, 0) else node.symbols.fresh("image") for size in image]
    return Tensor(tensor.state, (tensor.size(0), channels, *sizes))


@rule("DeformConv 19 22")
def deformed(node: Node) -> Tensor:
    """Convolve with a window that each row's own offsets move."""
    tensor, weights = node.tensor(0), node.tensor(1)
    node.without_rows(1, 3)
    rows_first(tensor)
    filters(weights)
    if any(node.has(place) and node.tensor(place).state != tensor.state for place in (2, 4)):
        raise Mixed("combines rows with offsets that do not have the same rows")
    dims = (tensor.size(0), weights.size(0), *node.tensor(2).sizes[2:])
    return Tensor(tensor.state, dims)
