"""Trains `commands.onnx` on words spoken by espeak-ng. Run it in the project's root folder:

    python -m functions.commands.train               writes commands.onnx, prints its accuracy
    python -m functions.commands.train --held-out    also writes held_out.npz and the samples

Needs espeak-ng, torch, numpy, onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from functions.commands import speech
from functions.commands.graph import (
    CHANNELS,
    FLOOR,
    FRAME,
    HOP,
    KERNELS,
    MEL_BANDS,
    RANGE,
    STRIDE,
    build,
    mel_weights,
    window,
)
from functions.commands.speech import LABELS, RATE_HZ, SAMPLES, Sound, Utterance

FOLDER = Path(__file__).parent
MODEL = FOLDER / "commands.onnx"
HELD_OUT = FOLDER / "held_out.npz"
SAMPLE_WORDS = {"yes.wav": "yes", "left.wav": "left", "stop.wav": "stop"}
"""Sample file -> spoken word."""
EPOCHS = 30
BATCH = 64
RATE_MAX = 2e-3
"""Peak learning rate."""
NOTHING_SHARE = 0.03
"""Clips of noise or silence, as a share of the clips with a word."""
PER_LABEL = 8
"""Clips of each label in held_out.npz."""
OTHER_WEIGHT = 0.3
"""Loss weight of clips without a command: there are six times as many as of one command."""
HIDDEN_BANDS = 8
HIDDEN_FRAMES = 16
"""Max neighbouring bands and frames masked per clip during training."""
SEED = 0

Labels = npt.NDArray[np.int64]


def train(said: Sequence[Utterance], sounds: Sequence[Sound], epochs: int = EPOCHS) -> bytes:
    """Train on `sounds` and return the serialised model; each epoch makes new recordings.

    The same sounds, machine and library versions give the same weights.
    """
    import torch

    # One thread, because the order of parallel sums would change the weights.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    chance = np.random.default_rng(SEED)
    network = _network()
    steps = epochs * -(-int(len(sounds) * (1 + NOTHING_SHARE)) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE_MAX, total_steps=steps)
    weights = torch.ones(len(LABELS))
    weights[LABELS.index(speech.OTHER)] = OTHER_WEIGHT
    for epoch in range(epochs):
        clips, labels = recordings(said, sounds, chance)
        losses = []
        for rows in np.array_split(chance.permutation(len(clips)), -(-len(clips) // BATCH)):
            heard = _heard(torch.from_numpy(clips[rows]))
            answers = network(heard * torch.from_numpy(_shown(heard.shape, chance)))
            wanted = torch.from_numpy(labels[rows])
            loss = torch.nn.functional.cross_entropy(answers, wanted, weight=weights)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1} of {epochs}: loss {np.mean(losses):.3f}", flush=True)
    model: bytes = _exported(network).SerializeToString(deterministic=True)
    return model


def recordings(
    said: Sequence[Utterance], sounds: Sequence[Sound], chance: np.random.Generator
) -> tuple[Sound, Labels]:
    """Return one clip [SAMPLES] per sound, then some clips without a word; and their labels."""
    nothing = int(len(sounds) * NOTHING_SHARE)
    clips = [speech.recorded(sound, chance) for sound in sounds]
    clips += [speech.nothing_said(chance) for _ in range(nothing)]
    labels = [each.label for each in said] + [LABELS.index(speech.OTHER)] * nothing
    return np.stack(clips), np.array(labels)


def predict(model: bytes, clips: Sound) -> Labels:
    """Return the labels [N] of `clips` [N, SAMPLES], found by ONNX Runtime with the model."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    parts = [
        session.run(["label"], {"audio": clips[begin : begin + BATCH]})[0]
        for begin in range(0, len(clips), BATCH)
    ]
    return np.concatenate(parts).astype(np.int64)


def held_out() -> tuple[Sound, Labels]:
    """Return the clips of held_out.npz [N, SAMPLES] and their labels."""
    with np.load(HELD_OUT) as file:
        rows, ends, labels = file["mu_law"], file["ends"], file["labels"]
    clips = np.zeros((len(ends), SAMPLES), np.float32)
    for clip, row in zip(clips, np.split(rows, np.cumsum(ends)[:-1]), strict=True):
        clip[: len(row)] = expand(row)
    return clips, labels.astype(np.int64)


def compress(sound: Sound) -> npt.NDArray[np.uint8]:
    """Encode samples in 8 bits each by the continuous mu-law curve; 128 is silence."""
    curve = np.sign(sound) * np.log1p(255 * np.abs(sound)) / np.log(256)
    return (np.rint(np.clip(curve, -1, 1) * 127) + 128).astype(np.uint8)


def expand(row: npt.NDArray[np.uint8]) -> Sound:
    """Decode the samples of `compress`."""
    curve = (row.astype(np.float32) - 128) / 127
    sound: Sound = np.sign(curve) * (np.power(np.float32(256), np.abs(curve)) - 1) / 255
    return sound.astype(np.float32)


def write_held_out(said: Sequence[Utterance], sounds: Sequence[Sound]) -> None:
    """Write held_out.npz: randomly drawn clips of each label, the word at the start of the clip."""
    chance = np.random.default_rng(SEED)
    labels = np.array([each.label for each in said])
    rows, kept = [], []
    for label in range(len(LABELS)):
        for index in chance.choice(np.flatnonzero(labels == label), PER_LABEL, replace=False):
            word = speech.resample(sounds[index], speech.SPOKEN_HZ, RATE_HZ)[:SAMPLES]
            rows.append(compress(word))
            kept.append(label)
    ends = np.array([len(row) for row in rows], np.int32)
    np.savez_compressed(
        HELD_OUT, mu_law=np.concatenate(rows), ends=ends, labels=np.array(kept, np.uint8)
    )


def write_samples(model: bytes, said: Sequence[Utterance], sounds: Sequence[Sound]) -> None:
    """Write, for each sample, the first held-out clip of its word that `model` labels correctly."""
    clips, labels = recordings(said, sounds, np.random.default_rng(SEED))
    right = predict(model, clips) == labels
    for name, word in SAMPLE_WORDS.items():
        first = int(np.flatnonzero(right & (labels == LABELS.index(word)))[0])
        with wave.open(str(FOLDER / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(np.rint(np.clip(clips[first], -1, 1) * 32767).astype("<i2").tobytes())


def _network() -> Any:
    """Return the trainable part: from `heard` to logits."""
    from torch import nn

    widths = (MEL_BANDS, *CHANNELS)
    layers: list[Any] = []
    for below, width, kernel in zip(widths, CHANNELS, KERNELS, strict=False):
        layers += [nn.Conv1d(below, width, kernel, STRIDE), nn.ReLU()]
    last = [nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, *last, nn.Linear(CHANNELS[-1], len(LABELS)))


def _heard(clips: Any) -> Any:
    """Compute the graph's input of the network: [N, SAMPLES] to [N, MEL_BANDS, frames]."""
    import torch

    hann = torch.from_numpy(window())
    spectrum = torch.stft(clips, FRAME, HOP, window=hann, center=False, return_complex=True)
    power = spectrum.real**2 + spectrum.imag**2
    mel = power.transpose(1, 2) @ torch.from_numpy(mel_weights(RATE_HZ))
    log_mel = torch.log(mel + FLOOR)
    below = log_mel - log_mel.amax((1, 2), keepdim=True)
    return (below.clamp(min=-RANGE) / (RANGE / 2) + 1).transpose(1, 2)


def _shown(shape: tuple[int, ...], chance: np.random.Generator) -> Sound:
    """Return a training mask: 0 in one range of bands and one range of frames per clip, else 1."""
    shown = np.ones(shape, np.float32)
    for axis, most in ((1, HIDDEN_BANDS), (2, HIDDEN_FRAMES)):
        places = np.arange(shape[axis])
        begin = chance.integers(0, shape[axis], (shape[0], 1))
        end = begin + chance.integers(0, most + 1, (shape[0], 1))
        hidden = (places >= begin) & (places < end)
        shown *= 1 - np.expand_dims(hidden, 3 - axis)
    return shown


def _exported(network: Any) -> onnx.ModelProto:
    """Return the graph with the trained weights."""
    trained = [layer for layer in network if hasattr(layer, "weight")]
    names = [*(f"_{layer}" for layer in range(len(KERNELS))), ""]
    weights = {}
    for name, layer in zip(names, trained, strict=True):
        weights[f"kernel{name}"] = layer.weight.detach().numpy()
        weights[f"bias{name}"] = layer.bias.detach().numpy()
    return build(weights, SAMPLES, RATE_HZ)


def main() -> None:
    """Make the clips, train, write the model and print its accuracy."""
    parser = argparse.ArgumentParser(description="Train commands.onnx.")
    parser.add_argument("--held-out", action="store_true", help="also write clips for the tests")
    arguments = parser.parse_args()
    said = speech.utterances()
    print(f"espeak-ng says {len(said)} words", flush=True)
    sounds = speech.speak_all(said)
    split: dict[bool, tuple[list[Utterance], list[Sound]]] = {False: ([], []), True: ([], [])}
    for each, sound in zip(said, sounds, strict=True):
        split[each.is_held_out][0].append(each)
        split[each.is_held_out][1].append(sound)
    model = train(*split[False])
    MODEL.write_bytes(model)
    clips, labels = recordings(*split[True], np.random.default_rng(SEED + 1))
    right = predict(model, clips) == labels
    print(f"{MODEL.name}: {len(model)} bytes, {right.mean():.1%} of {len(clips)} held-out clips")
    for index, label in enumerate(LABELS):
        print(f"  {label:6} {right[labels == index].mean():.1%}")
    if arguments.held_out:
        write_held_out(*split[True])
        write_samples(model, *split[True])


if __name__ == "__main__":
    main()
