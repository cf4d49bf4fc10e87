"""The networks of docs/scale.md, as plain modules: they can be built on the meta device, where nothing is computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels_in, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = nn.Conv2d(channels, 4 * channels, 1, bias=False), nn.BatchNorm2d(4 * channels)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels_in != 4 * channels:
            projection = nn.Conv2d(channels_in, 4 * channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(4 * channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet50() -> nn.Module:
    """25,557,032 parameters; images [N, 3, 224, 224]."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels_in = 64
    for channels, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(channels_in, channels, stride if i == 0 else 1))
            channels_in = 4 * channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Attention(nn.Module):
    """Queries, keys and values from three linear layers; causal or not. (Rotary positions cost no products.)"""

    def __init__(self, width: int, heads: int, causal: bool, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and a feed-forward part, gated or not, each behind a norm."""

    def __init__(self, width: int, heads: int, hidden: int, gated: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if gated else nn.LayerNorm
        self.before, self.between = norm(width), norm(width)
        self.attention = Attention(width, heads, causal=gated, bias=not gated)
        self.up, self.down = nn.Linear(width, hidden, bias=not gated), nn.Linear(hidden, width, bias=not gated)
        self.gate = nn.Linear(width, hidden, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        y = self.between(x)
        up = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        out: Tensor = x + self.down(up)
        return out


class VisionTransformer(nn.Module):
    """ViT-L/16: 24 blocks of width 1024 on 197 tokens; images [N, 3, 224, 224]."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 1024, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 1024))
        self.places = nn.Parameter(torch.zeros(1, 197, 1024))
        self.blocks = nn.Sequential(*(Block(1024, 16, 4096, gated=False) for _ in range(24)))
        self.norm, self.head = nn.LayerNorm(1024), nn.Linear(1024, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


class Decoder(nn.Module):
    """A decoder of width 4096 with a gated hidden width of 11008, as 7-billion-parameter models have; token ids [N, T].

    Its logits are those of the last position: a sample is a sequence with the token that follows it.
    """

    def __init__(self, blocks: int = 32, vocabulary: int = 32_000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 4096)
        self.blocks = nn.Sequential(*(Block(4096, 32, 11_008, gated=True) for _ in range(blocks)))
        self.norm, self.head = nn.RMSNorm(4096), nn.Linear(4096, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.embed(ids))[:, -1]))
        return logits
