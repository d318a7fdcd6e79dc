"""Tests of the committed model with voices not in its training data, and of its folder."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from functions.commands import graph, speech, train
from tests.support.ready_made import ReadyMade

WAV = "audio/wav"
ACCURACY_MIN = 0.85
NOISY_MIN = 0.75


@pytest.fixture(scope="module")
def commands() -> ReadyMade:
    return ReadyMade(train.FOLDER)


@pytest.fixture(scope="module")
def clips() -> tuple[speech.Sound, list[str]]:
    """Held-out clips [N, SAMPLES] and the labels they should get."""
    sounds, labels = train.held_out()
    return sounds, [speech.LABELS[label] for label in labels]


def as_wav(sound: speech.Sound, rate: int = speech.RATE_HZ, channels: int = 1) -> bytes:
    """Samples in -1..1 as a WAV file of 16 bits, the same in every channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(2)
        clip.setframerate(rate)
        values = np.rint(np.clip(sound, -1, 1) * 32767).astype("<i2")
        clip.writeframes(np.repeat(values, channels).tobytes())
    return file.getvalue()


def share(commands: ReadyMade, bodies: list[bytes], labels: list[str]) -> float:
    """Return the share of WAV files that the function labels correctly."""
    heard = [commands.best(body, WAV) for body in bodies]
    return float(np.mean([one == other for one, other in zip(heard, labels, strict=True)]))


@pytest.mark.slow
def test_it_hears_voices_it_never_heard(
    commands: ReadyMade, clips: tuple[speech.Sound, list[str]]
) -> None:
    """At least 85 % of the held-out clips, sent as WAV files, each label eight times."""
    sounds, labels = clips

    assert sorted(labels) == sorted(speech.LABELS * train.PER_LABEL)
    assert share(commands, [as_wav(sound) for sound in sounds], labels) >= ACCURACY_MIN


@pytest.mark.slow
def test_noise_place_and_rate_matter_little(
    commands: ReadyMade, clips: tuple[speech.Sound, list[str]]
) -> None:
    """Later in the second, in stereo at 44.1 kHz, over noise 26 dB below: still 75 %."""
    sounds, labels = clips
    chance = np.random.default_rng(0)
    bodies = []
    for sound in sounds:
        spoken = np.trim_zeros(sound, "b")
        later = np.roll(sound, int(chance.integers(0, speech.SAMPLES - len(spoken) + 1)))
        level = 0.05 * float(np.sqrt(np.mean(spoken**2)))
        noisy = later + speech.noise(len(sound), chance) * np.float32(level)
        bodies.append(as_wav(speech.resample(noisy, speech.RATE_HZ, 44_100), 44_100, 2))

    assert share(commands, bodies, labels) >= NOISY_MIN


def test_how_loud_it_is_does_not_matter(
    commands: ReadyMade, clips: tuple[speech.Sound, list[str]]
) -> None:
    """A clip at a third of its level gets the same label."""
    sound = clips[0][0]

    assert commands.best(as_wav(sound / 3), WAV) == commands.best(as_wav(sound), WAV)


def test_silence_is_no_command(commands: ReadyMade) -> None:
    """A second without a sound is not one of the words."""
    assert commands.best(as_wav(np.zeros(speech.SAMPLES, np.float32)), WAV) == speech.OTHER


def test_training_hears_what_the_graph_hears(clips: tuple[speech.Sound, list[str]]) -> None:
    """The bands inside the graph are those of a plain Fourier transform of each frame."""
    model = onnx.load(train.MODEL)
    kept = [node for node in model.graph.node if "kernel_0" not in node.input]
    first = next(node for node in model.graph.node if "kernel_0" in node.input)
    bands = kept[: [node.output[0] for node in kept].index(first.input[0]) + 1]
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.extend(bands)
    model.graph.output.append(
        onnx.helper.make_tensor_value_info(first.input[0], onnx.TensorProto.FLOAT, None)
    )
    session = train.onnxruntime.InferenceSession(model.SerializeToString())

    [heard] = session.run(None, {"audio": clips[0][:3]})

    assert heard == pytest.approx(plain_bands(clips[0][:3]), abs=0.02)


def plain_bands(sounds: speech.Sound) -> Any:
    """Return the same bands, computed frame by frame."""
    frames = np.lib.stride_tricks.sliding_window_view(sounds, graph.FRAME, axis=1)
    spectrum = np.fft.rfft(frames[:, :: graph.HOP] * graph.window(), axis=2)
    mel = np.abs(spectrum) ** 2 @ graph.mel_weights(speech.RATE_HZ)
    log_mel = np.log(mel + graph.FLOOR)
    below = log_mel - log_mel.max(axis=(1, 2), keepdims=True)
    return np.maximum(below, -graph.RANGE).transpose(0, 2, 1) / (graph.RANGE / 2) + 1


@pytest.mark.parametrize(("name", "word"), train.SAMPLE_WORDS.items())
def test_a_sample_is_what_its_name_says(commands: ReadyMade, name: str, word: str) -> None:
    """A sample file is a second at 16 kHz, and the model hears its word."""
    body = (train.FOLDER / name).read_bytes()

    with wave.open(io.BytesIO(body)) as file:
        assert (file.getframerate(), file.getnframes()) == (speech.RATE_HZ, speech.SAMPLES)
    assert commands.best(body, WAV) == word


def test_the_manifest_names_what_is_there(commands: ReadyMade) -> None:
    """Labels, rate, length and sample of the manifest are those of training and model."""
    manifest = commands.manifest
    form = manifest.inputs["audio"].audio

    assert manifest.output.labels == speech.LABELS
    assert form is not None
    assert (form.rate_hz, form.samples) == (speech.RATE_HZ, speech.SAMPLES)
    assert manifest.sample["audio"].removeprefix("@") in train.SAMPLE_WORDS
    assert [spec.shape for spec in commands.engine.signature.inputs] == [(-1, speech.SAMPLES)]
    assert train.MODEL.stat().st_size < 400_000


@pytest.mark.slow
def test_calls_share_a_run(commands: ReadyMade) -> None:
    """A deploy finds that clips of any length may be answered together."""
    report = commands.report()

    assert report.why_not == ""
    assert report.batchable
    assert report.sample_outputs["top"][0][0]["label"] == "yes"


def test_the_committed_model_is_what_the_script_writes() -> None:
    """The graph that the script builds around the committed weights is the committed file."""
    weights = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(train.MODEL).graph.initializer
        if tensor.name.startswith(("kernel", "bias"))
    }

    again = graph.build(weights, speech.SAMPLES, speech.RATE_HZ)

    assert again.SerializeToString(deterministic=True) == train.MODEL.read_bytes()


def test_resampling_is_the_gateways(commands: ReadyMade) -> None:
    """Training sees a clip of another rate as the replica does."""
    sound = np.sin(np.arange(11_025) / 9).astype(np.float32) / 2
    row = speech.resample(sound, 11_025, speech.RATE_HZ)

    [heard] = commands.tensors(as_wav(sound, 11_025), WAV)["audio"]

    assert heard[: len(row)] == pytest.approx(row, abs=2e-4)
    assert not heard[len(row) :].any()


def test_voices_are_held_out() -> None:
    """No utterance of a held-out voice, and no held-out word, is among those to train on."""
    said = speech.utterances()
    trained = [each for each in said if not each.is_held_out]

    assert not {each.voice for each in trained} & set(speech.VOICES_HELD_OUT)
    assert not {each.timbre for each in trained} & set(speech.TIMBRES_HELD_OUT)
    assert not {each.word for each in trained} & set(speech.OTHERS_HELD_OUT)
    assert not {each.word for each in said if each.is_held_out} & set(speech.OTHERS)
    assert len(set(said)) == len(said)


def test_a_recording_holds_the_whole_word() -> None:
    """Somewhere in the second lies the word; the noise is soft, and what is padded is silent."""
    word = np.sin(np.arange(8_000) / 5).astype(np.float32)

    for seed in range(5):
        clip = speech.recorded(word, np.random.default_rng(seed))
        loud = np.flatnonzero(np.abs(clip) > 0.5 * np.abs(clip).max())
        assert clip.shape == (speech.SAMPLES,)
        assert 0.8 <= (loud[-1] - loud[0]) / (8_000 * speech.RATE_HZ / speech.SPOKEN_HZ) <= 1.2


def test_eight_bits_hold_a_clip() -> None:
    """A sample decoded from held_out.npz is within a fortieth of the original, or of silence."""
    sound = np.linspace(-1, 1, 2001, dtype=np.float32)

    again = train.expand(train.compress(sound))

    assert np.abs(again - sound).max() <= 0.025
    assert np.abs(again - sound)[np.abs(sound) < 0.01].max() <= 0.001
