"""Words spoken by espeak-ng, with the effects of a room and a microphone.

espeak-ng is only needed to make clips, not to use the model: `apt-get install espeak-ng`. Clips
were made with version 1.51; other versions sound slightly different.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RATE_HZ = 16_000
SAMPLES = 16_000
"""Samples of a clip: one second, as in function.toml."""
SPOKEN_HZ = 22_050
"""Sample rate of espeak-ng."""

COMMANDS = ("yes", "no", "up", "down", "left", "right", "stop", "go")
OTHER = "other"
LABELS = (*COMMANDS, OTHER)
OTHERS = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero",
    "house", "cat", "bird", "tree", "happy", "water", "table", "window", "paper", "music",
    "light", "night", "rest", "less", "step", "shop", "top", "cut", "town", "round",
    "lead", "bed", "show", "blue", "green", "garden", "morning", "people", "summer", "letter",
    "river", "yellow", "marvin", "sheila", "follow", "learn", "backward", "forward", "visual",
    "apple", "orange", "kitchen", "number", "answer", "floor", "cold", "best", "think",
)  # fmt: skip
"""Words that are not commands. Each differs from every command by more than one sound, because
accents differ by that much."""
OTHERS_HELD_OUT = (
    "ten", "dog", "moon", "chair", "door", "bread", "street", "winter", "phone", "camera",
    "guess", "lap", "slow", "lock", "brown", "wide", "silver", "doctor", "pencil", "market",
)  # fmt: skip
"""Words that are not commands and not in the training data."""

VOICES = ("en-us", "en-us-nyc", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan")
VOICES_HELD_OUT = ("en-029", "en-gb-x-gbcwmd")
"""Accents not in the training data: the Caribbean and the West Midlands."""
TIMBRES = ("", "+m1", "+m3", "+m5", "+f1", "+f2", "+f3", "+croak")
TIMBRES_HELD_OUT = ("+f4", "+m7")
SPEEDS = (130, 170, 220)
"""Words per minute."""
PITCHES = (30, 55, 75)
_SEED = 0
_SPEAK_S = 10
"""Timeout of espeak-ng in seconds; a word takes about 10 ms."""

Sound = npt.NDArray[np.float32]
"""Samples in -1..1."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One word, spoken by one voice."""

    word: str
    voice: str
    timbre: str
    speed: int
    pitch: int

    @property
    def label(self) -> int:
        """Index of the word's label in `LABELS`."""
        return LABELS.index(self.word if self.word in COMMANDS else OTHER)

    @property
    def is_held_out(self) -> bool:
        """Whether the accent or the timbre is excluded from training."""
        return self.voice in VOICES_HELD_OUT or self.timbre in TIMBRES_HELD_OUT


def utterances() -> list[Utterance]:
    """Return all utterances in a fixed order: commands in every way, others in randomly drawn ways.

    Words of `OTHERS` use training voices only, words of `OTHERS_HELD_OUT` use held-out voices only.
    """
    lot = random.Random(_SEED)  # noqa: S311 - a choice of voices, not a secret
    ways = [
        (voice, timbre, speed, pitch)
        for voice in (*VOICES, *VOICES_HELD_OUT)
        for timbre in (*TIMBRES, *TIMBRES_HELD_OUT)
        for speed in SPEEDS
        for pitch in PITCHES
    ]
    made = [Utterance(word, *way) for word in COMMANDS for way in ways]
    for words, is_held_out, count in ((OTHERS, False, 45), (OTHERS_HELD_OUT, True, 15)):
        for word in words:
            pool = [way for way in ways if Utterance(word, *way).is_held_out == is_held_out]
            made += [Utterance(word, *way) for way in lot.sample(pool, count)]
    return made


def speak(said: Utterance) -> Sound:
    """Return espeak-ng's output at `SPOKEN_HZ`, without the silence around it."""
    voice = ["-v", said.voice + said.timbre, "-s", str(said.speed), "-p", str(said.pitch)]
    wav = subprocess.run(
        ["espeak-ng", *voice, "--stdout", said.word],  # noqa: S607 - wherever it is installed
        capture_output=True,
        check=True,
        timeout=_SPEAK_S,
    ).stdout
    # When writing to a pipe, espeak-ng puts a wrong length into the header; wave.open would use it.
    begin = wav.index(b"data") + 8
    values = np.frombuffer(wav[begin : begin + (len(wav) - begin) // 2 * 2], "<i2")
    sound: Sound = (values / 32768).astype(np.float32)
    loud = np.flatnonzero(np.abs(sound) > 0.005)
    return sound[loud[0] : loud[-1] + 1] if loud.size else sound


def speak_all(wanted: Sequence[Utterance], threads: int = 2) -> list[Sound]:
    """Return the sound of every utterance, in the same order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(speak, wanted))


def resample(sound: Sound, rate: float, wanted: float) -> Sound:
    """Resample linearly, without a filter, as replicas resample WAV files."""
    count = max(1, int(len(sound) * wanted / rate))
    at = np.arange(count) * (rate / wanted)
    return np.interp(at, np.arange(len(sound)), sound).astype(np.float32)


def recorded(sound: Sound, chance: np.random.Generator) -> Sound:
    """Return one second [SAMPLES] at `RATE_HZ` that contains the word of `sound` (`SPOKEN_HZ`).

    Random variations: faster and higher or slower and lower, one of the usual sample rates, level,
    position within the second, and white or low noise of up to a tenth of the word's level. The
    recording may end before the second does; the rest is silence, like padding.
    """
    tempo = chance.uniform(0.88, 1.15)
    rate = chance.choice([8_000, 11_025, 16_000, SPOKEN_HZ])
    word = resample(resample(sound, SPOKEN_HZ * tempo, rate), rate, RATE_HZ)[:SAMPLES]
    begin = int(chance.integers(0, SAMPLES - len(word) + 1))
    end = int(chance.integers(begin + len(word), SAMPLES + 1))
    clip = np.zeros(SAMPLES, np.float32)
    clip[begin : begin + len(word)] = word
    level = float(np.sqrt(np.mean(word**2))) + 1e-6
    clip[:end] += noise(end, chance) * level * 10 ** chance.uniform(-3, -1)
    return clip * np.float32(chance.uniform(0.1, 1.0))


def noise(count: int, chance: np.random.Generator) -> Sound:
    """Return `count` samples of noise with RMS 1: white, or low-frequency like a room's hum."""
    white = chance.normal(size=count)
    if chance.random() < 0.5:
        spectrum = np.fft.rfft(white)
        spectrum /= np.sqrt(np.arange(len(spectrum)) + 20.0)
        white = np.fft.irfft(spectrum, count)
    scale = float(np.sqrt(np.mean(white**2))) + 1e-9
    return (white / scale).astype(np.float32)


def nothing_said(chance: np.random.Generator) -> Sound:
    """Return one second of noise only, or of silence."""
    level = chance.choice([0.0, 10 ** chance.uniform(-4, -1)])
    return noise(SAMPLES, chance) * np.float32(level)
