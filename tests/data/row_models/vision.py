"""Image, audio and table networks of the row models."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.data.row_models.catalogue import Input, Network


def conv_block(
    before: int, after: int, stride: int = 1, groups: int = 1, size: int = 3
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    )


class Cnn(nn.Module):
    """Convolutions and pooling, flattened by the way `flat` names."""

    def __init__(self, flat: str) -> None:
        super().__init__()
        self.flat = flat
        self.first = nn.Conv2d(3, 6, 3)
        self.second = nn.Conv2d(6, 8, 3)
        self.head = nn.Linear(8 * 5 * 5, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.avg_pool2d(F.relu(self.second(x)), 1)
        if self.flat == "flatten":
            x = torch.flatten(x, 1)
        elif self.flat == "view":
            x = x.view(x.size(0), -1)
        else:
            x = x.view(-1, 8 * 5 * 5)
        return F.log_softmax(self.head(x), dim=1)


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_block(before, after, stride), nn.ReLU(), conv_block(after, after)
        )
        self.skip = conv_block(before, after, stride, size=1) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        conv_block(3, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(8, 8, 1),
        Residual(8, 12, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


class InvertedResidual(nn.Module):
    """MobileNetV3's block with squeeze and excitation; `act` is SiLU for EfficientNet."""

    def __init__(self, width: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.grow = nn.Sequential(conv_block(width, width * 2, size=1), act())
        self.depth = nn.Sequential(conv_block(width * 2, width * 2, groups=width * 2), act())
        self.squeeze = nn.Conv2d(width * 2, 4, 1)
        self.excite = nn.Conv2d(4, width * 2, 1)
        self.gate = nn.Hardsigmoid() if act is nn.Hardswish else nn.Sigmoid()
        self.shrink = conv_block(width * 2, width, size=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.grow(x))
        scale = F.adaptive_avg_pool2d(y, 1)
        y = y * self.gate(self.excite(F.relu(self.squeeze(scale))))
        return x + self.shrink(y)


def inverted(act: type[nn.Module]) -> nn.Module:
    return nn.Sequential(
        conv_block(3, 8, 2),
        act(),
        InvertedResidual(8, act),
        InvertedResidual(8, act),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(8, 5),
    )


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.grow, self.shrink = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.randn(8) * 0.1)
        self.last = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.shrink(F.gelu(self.grow(y))) * self.scale
        x = x + y.permute(0, 3, 1, 2)
        return self.head(self.last(x.mean((-2, -1))))


class UNet(nn.Module):
    """One level of a U-Net, which grows back by Resize in `mode`."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.down, self.middle = conv_block(1, 4), conv_block(4, 8)
        self.up = conv_block(12, 4)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        y = F.relu(self.middle(F.max_pool2d(skip, 2)))
        if self.mode == "bilinear":
            y = F.interpolate(y, size=skip.shape[2:], mode="bilinear", align_corners=False)
        else:
            y = F.interpolate(y, scale_factor=2, mode="nearest")
        return self.out(F.relu(self.up(torch.cat([y, skip], dim=1))))


class Shuffle(nn.Module):
    """ShuffleNet's channel shuffle by view and transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 8, 3, padding=1, groups=2)
        self.point = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.grouped(x))
        batch, channels, high, wide = x.shape
        x = x.view(batch, 2, channels // 2, high, wide).transpose(1, 2).contiguous()
        return self.point(x.view(batch, -1, high, wide)).mean((2, 3))


class Yolo(nn.Module):
    """A detection head: boxes of two scales decoded over a grid and concatenated."""

    def __init__(self, anchors: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.anchors, self.values = anchors, classes + 5
        self.stem, self.deep = conv_block(3, 8, 2), conv_block(8, 8, 2)
        self.heads = nn.ModuleList([nn.Conv2d(8, anchors * self.values, 1) for _ in range(2)])

    def decoded(self, x: Tensor) -> Tensor:
        batch, _, high, wide = x.shape
        x = x.view(batch, self.anchors, self.values, high, wide).permute(0, 1, 3, 4, 2)
        rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
        grid = torch.stack((columns, rows), 2).view(1, 1, high, wide, 2).float()
        place = (x[..., 0:2].sigmoid() * 2 - 0.5 + grid) * 8
        size = (x[..., 2:4].sigmoid() * 2) ** 2
        boxes = torch.cat((place, size, x[..., 4:].sigmoid()), -1)
        return boxes.reshape(batch, -1, self.values)

    def forward(self, x: Tensor) -> Tensor:
        near = F.silu(self.stem(x))
        far = F.silu(self.deep(near))
        parts = [self.decoded(head(y)) for head, y in zip(self.heads, (near, far), strict=True)]
        return torch.cat(parts, 1)


class Siamese(nn.Module):
    """Two images against each other by Einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(2))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        near, far = self.tower(left), self.tower(right)
        alike = torch.einsum("bcx,bcx->bc", near, far)
        return alike / (near.norm(dim=2) * far.norm(dim=2) + 1e-6)


class TimeDistributed(nn.Module):
    """A CNN over every frame of a clip: frames join the batch axis and leave it again."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, frames = x.shape[:2]
        y = self.frame(x.flatten(0, 1)).flatten(1)
        return self.head(y.view(batch, frames, -1).mean(1))


class TopHead(nn.Module):
    """The three best classes and their probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        best = torch.topk(self.body(x).softmax(-1), 3, dim=-1)
        return best.values, best.indices


class SortHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        ordered, _ = torch.sort(y, dim=1, descending=True)
        return y.argmax(1), ordered.cumsum(1)


class Slices(nn.Module):
    """Writes into a slice of a fresh tensor, which both exporters turn into ScatterND."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros(x.shape[0], 6)
        y[:, 2:4] = self.body(x)
        return y


class Recommender(nn.Module):
    """Embedding tables, dense features and their products, as DLRM has them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(20, 4) for _ in range(3)])
        self.dense = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(4 + 16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, numbers: Tensor, places: Tensor) -> Tensor:
        dense = self.dense(numbers)
        found = [table(places[:, at]) for at, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *found], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([dense, products], dim=1)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ELU(), nn.Linear(12, 4))


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        nn.GroupNorm(2, 4),
        nn.PReLU(),
        nn.ConvTranspose2d(4, 4, 4, 2, 1),
        nn.InstanceNorm2d(4, affine=True),
        nn.Conv2d(4, 1, 3, 1, 1),
        nn.Tanh(),
    )


def upscaler() -> nn.Module:
    return nn.Sequential(
        nn.ReflectionPad2d(1),
        nn.Conv2d(1, 4, 3),
        nn.LeakyReLU(),
        nn.Conv2d(4, 4, 3, 1, 1),
        nn.PixelShuffle(2),
        nn.Hardtanh(),
    )


def audio() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 4, 9, 4),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(4, 6, 3, dilation=2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def image(channels: int, size: int) -> tuple[Input, ...]:
    return (Input("image", (channels, size, size)),)


TABLE = (Input("x", (6,)),)

NETWORKS = (
    Network("mlp", "dense", mlp, TABLE),
    Network("cnn", "convolutional", partial(Cnn, "flatten"), image(3, 16)),
    Network("cnn_view", "convolutional", partial(Cnn, "view"), image(3, 16)),
    Network("cnn_view_minus_one", "convolutional", partial(Cnn, "fixed"), image(3, 16)),
    Network("resnet", "convolutional", resnet, image(3, 16)),
    Network("mobilenet", "convolutional", partial(inverted, nn.Hardswish), image(3, 16)),
    Network("efficientnet", "convolutional", partial(inverted, nn.SiLU), image(3, 16)),
    Network("convnext", "convolutional", ConvNext, image(3, 16)),
    Network("unet", "convolutional", partial(UNet, "nearest"), image(1, 8)),
    Network(
        "unet_any_size", "convolutional", partial(UNet, "bilinear"), (Input("x", (1, "h", "w")),)
    ),
    Network("shufflenet", "convolutional", Shuffle, image(4, 8)),
    Network("autoencoder", "convolutional", autoencoder, image(1, 8)),
    Network("upscaler", "convolutional", upscaler, image(1, 8)),
    Network("audio", "convolutional", audio, (Input("wave", (1, 160)),)),
    Network("yolo", "convolutional", Yolo, image(3, 16)),
    Network("clip_frames", "convolutional", TimeDistributed, (Input("clip", (3, 1, 8, 8)),)),
    Network(
        "siamese", "convolutional", Siamese, (Input("left", (1, 6, 6)), Input("right", (1, 6, 6)))
    ),
    Network("top_k", "head", TopHead, TABLE),
    Network("sorted", "head", SortHead, TABLE),
    Network("slices", "head", Slices, (Input("x", (2,)),)),
    Network(
        "recommender", "embedding", Recommender, (Input("numbers", (5,)), Input("places", (3,), 20))
    ),
)
