"""Recurrent and attention networks of the row models."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.data.row_models.catalogue import Input, Network

WIDTH = 16
HEADS = 2
WORDS = 40
LENGTH = 12
"""Positions that a text network knows."""


class Recurrent(nn.Module):
    """An LSTM or GRU; `answer` is "all" steps, the "last" step or the last hidden "state"."""

    def __init__(self, kind: type[nn.RNNBase], answer: str, first: bool, both: bool) -> None:
        super().__init__()
        self.answer, self.first = answer, first
        self.net = kind(5, 6, batch_first=first, bidirectional=both)
        self.head = nn.Linear(12 if both and answer != "state" else 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.net(x if self.first else x.transpose(0, 1))
        if self.answer == "state":
            return self.head((state[0] if isinstance(state, tuple) else state)[-1])
        y = y if self.first else y.transpose(0, 1)
        return self.head(y[:, -1] if self.answer == "last" else y)


class Begun(nn.Module):
    """A GRU whose first state the caller sends."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.GRU(5, 6, batch_first=True)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, after = self.net(x, state.unsqueeze(0))
        return y, after.squeeze(0)


class Attend(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        self.net = nn.MultiheadAttention(WIDTH, HEADS, batch_first=first)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        y, _ = self.net(x, x, x, need_weights=False)
        return y if self.first else y.transpose(0, 1)


class Encoder(nn.Module):
    """nn.TransformerEncoder over words, with or without a mask of padding."""

    def __init__(self, masked: bool, norm_first: bool = False) -> None:
        super().__init__()
        self.masked = masked
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 24, batch_first=True, norm_first=norm_first, activation="gelu"
        )
        self.net = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, words: Tensor) -> Tensor:
        padding = words.eq(0) if self.masked else None
        return self.net(self.words(words), src_key_padding_mask=padding).mean(1)


class Layer(nn.Module):
    """One pre-norm layer; `fused` attends by scaled_dot_product_attention."""

    def __init__(self, causal: bool, fused: bool) -> None:
        super().__init__()
        self.causal, self.fused = causal, fused
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH))[None, None])

    def attended(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            if self.causal:
                hidden = self.mask[:, :, :length, :length] == 0
                scores = scores.masked_fill(hidden, float("-inf"))
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attended(self.before(x))
        return x + self.shrink(F.gelu(self.grow(self.after(x))))


class Gpt(nn.Module):
    """A small causal language model with learnt positions."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layer = Layer(causal=True, fused=fused)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.layer(self.words(words) + self.places(places)))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.label = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 17, WIDTH))
        self.layer = Layer(causal=False, fused=False)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.label.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.layer(x)[:, 0])


class Swin(nn.Module):
    """A shifted window: windows join the batch axis and leave it again."""

    def __init__(self, side: int = 4, window: int = 2) -> None:
        super().__init__()
        self.side, self.window = side, window
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.layer = Layer(causal=False, fused=False)
        self.merge = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).permute(0, 2, 3, 1)
        x = torch.roll(x, (-1, -1), (1, 2))
        batch, w, many = x.shape[0], self.window, self.side // self.window
        x = x.view(batch, many, w, many, w, WIDTH).permute(0, 1, 3, 2, 4, 5)
        x = self.layer(x.reshape(-1, w * w, WIDTH))
        x = x.view(batch, many, many, w, w, WIDTH).permute(0, 1, 3, 2, 4, 5)
        x = torch.roll(x.reshape(batch, self.side, self.side, WIDTH), (1, 1), (1, 2))
        parts = [x[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
        return self.merge(torch.cat(parts, -1)).mean((1, 2))


class LastToken(nn.Module):
    """The hidden state of the last word that is no padding, by `gather`, mask or index."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.words = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        count = words.ne(0).sum(1)
        if self.how == "index":
            return self.head(x[torch.arange(words.shape[0]), count - 1])
        place = (count - 1).clamp(min=0)
        return self.head(x.gather(1, place[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1))


class Pooled(nn.Module):
    """Word vectors averaged where the mask is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        keep = mask.unsqueeze(-1).float()
        total = (self.words(words) * keep).sum(1) / keep.sum(1).clamp(min=1e-9)
        return F.normalize(self.head(total), dim=1)


class Decoder(nn.Module):
    """Queries of the caller's against a memory of the caller's own length."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 24, batch_first=True)
        self.net = nn.TransformerDecoder(layer, 1)

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        return self.net(target, memory)


def recurrent(
    kind: type[nn.RNNBase], answer: str = "all", first: bool = True, both: bool = False
) -> partial[Recurrent]:
    return partial(Recurrent, kind, answer, first, both)


STEPS = (Input("x", ("seq", 5)),)
VECTORS = (Input("x", ("seq", WIDTH)),)
TEXT = (Input("words", ("seq",), WORDS),)
IMAGE = (Input("image", (3, 16, 16)),)

NETWORKS = (
    Network("lstm", "recurrent", recurrent(nn.LSTM, "last"), STEPS),
    # The exporter writes the traced length into a Reshape: it fits no other, but says so nowhere.
    Network(
        "lstm_time_first",
        "recurrent",
        recurrent(nn.LSTM, first=False),
        STEPS,
        unjudged={"dynamo": "Reshape"},
    ),
    Network("lstm_both_ways", "recurrent", recurrent(nn.LSTM, both=True), STEPS),
    Network("gru_state", "recurrent", recurrent(nn.GRU, "state"), STEPS),
    Network("gru_both_ways", "recurrent", recurrent(nn.GRU, "last", both=True), STEPS),
    Network("rnn", "recurrent", recurrent(nn.RNN), STEPS),
    Network("gru_begun", "recurrent", Begun, (*STEPS, Input("state", (6,)))),
    Network("attention", "transformer", partial(Attend, True), VECTORS),
    Network("attention_time_first", "transformer", partial(Attend, False), VECTORS),
    Network("encoder", "transformer", partial(Encoder, False), TEXT),
    Network("encoder_norm_first", "transformer", partial(Encoder, False, True), TEXT),
    Network("encoder_masked", "transformer", partial(Encoder, True), TEXT),
    Network(
        "decoder",
        "transformer",
        Decoder,
        (Input("target", (4, WIDTH)), Input("memory", ("seq", WIDTH))),
    ),
    Network("gpt_by_hand", "transformer", partial(Gpt, False), TEXT),
    Network("gpt_fused", "transformer", partial(Gpt, True), TEXT),
    Network("vit", "transformer", Vit, IMAGE),
    Network("swin", "transformer", Swin, IMAGE),
    Network("last_token", "text head", partial(LastToken, "gather"), TEXT),
    Network("pooled", "text head", Pooled, (*TEXT, Input("mask", ("seq",), 2))),
    Network(
        "last_token_index",
        "text head",
        partial(LastToken, "index"),
        TEXT,
        leaks={"torchscript": "index -1 of a row of padding reads the last word of the row before"},
    ),
)
