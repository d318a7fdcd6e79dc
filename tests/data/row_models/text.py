"""Text networks of the transformers library, and its ViT, with tiny configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import transformers
from torch import Tensor, nn

from tests.data.row_models.catalogue import Input, Network

WORDS = 40
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}


class First(nn.Module):
    """A model of the library as one function from tensors to its first output."""

    def __init__(self, net: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *given: Tensor) -> Tensor:
        named = dict(zip(self.names, given, strict=True))
        return self.net(**named, return_dict=False)[0]


class WordsAndMask(First):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, attention_mask)


class Pixels(First):
    def forward(self, pixel_values: Tensor) -> Tensor:
        return super().forward(pixel_values)


def text(make: Callable[[Any], nn.Module], config: type, **sizes: Any) -> nn.Module:
    """A text model with random weights that takes words and a mask of padding."""
    settings = config(**(sizes or SIZES))
    settings._attn_implementation = "eager"
    settings.use_cache = False
    return WordsAndMask(make(settings), ("input_ids", "attention_mask"))


def bert() -> nn.Module:
    return text(transformers.BertForSequenceClassification, transformers.BertConfig)


def roberta() -> nn.Module:
    sizes = {**SIZES, "pad_token_id": 1}
    return text(transformers.RobertaModel, transformers.RobertaConfig, **sizes)


def distilbert() -> nn.Module:
    sizes = {"dim": 16, "n_heads": 2, "n_layers": 1, "hidden_dim": 24}
    return text(
        transformers.DistilBertModel,
        transformers.DistilBertConfig,
        vocab_size=WORDS,
        max_position_embeddings=16,
        **sizes,
    )


def gpt2() -> nn.Module:
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return text(transformers.GPT2Model, transformers.GPT2Config, vocab_size=WORDS, **sizes)


def llama() -> nn.Module:
    sizes = {**SIZES, "num_key_value_heads": 1}
    return text(transformers.LlamaForCausalLM, transformers.LlamaConfig, **sizes)


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    return text(transformers.T5EncoderModel, transformers.T5Config, vocab_size=WORDS, **sizes)


def vit() -> nn.Module:
    sizes = {**SIZES, "image_size": 16, "patch_size": 4}
    settings = transformers.ViTConfig(**sizes)
    settings._attn_implementation = "eager"
    return Pixels(transformers.ViTModel(settings, add_pooling_layer=False), ("pixel_values",))


MASKED = (Input("input_ids", ("seq",), WORDS), Input("attention_mask", ("seq",), 2))

Text = partial(Network, family="transformers library", inputs=MASKED)

NETWORKS = (
    Text("bert", build=bert),
    Text("distilbert", build=distilbert),
    Text("roberta", build=roberta),
    Text("gpt2", build=gpt2),
    Text("llama", build=llama),
    Text("t5_encoder", build=t5),
    Network("hf_vit", "transformers library", vit, (Input("pixel_values", (3, 16, 16)),)),
)
