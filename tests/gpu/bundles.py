"""Functions deployed by the checks, written into a folder."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

MANIFEST = """schema = 1
name = "{name}"

[runtime]
engine = "python"

[device]
kind = "{kind}"
share = {share}

[input.x]
kind = "json"
"""
LINEAR = '''"""A linear layer with the same weights on every device."""

import os
import subprocess
import sys
import time

import torch

SIZE = 256
KEPT_MIB = {kept_mib}
LEAK = """
import time
import torch
kept = torch.ones(2**28, device="cuda")
print(1, flush=True)
time.sleep(600)
"""


def load(ctx):
    weights = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(7)).to(ctx.device)
    return weights, torch.ones(KEPT_MIB * 2**18, device=ctx.device)


def predict(inputs, ctx):
    asked = inputs["x"]
    weights, _ = ctx.state
    rows = torch.tensor(asked.get("rows", [[1.0] * SIZE]), device=ctx.device)
    answer = rows @ weights
    until = time.monotonic() + asked.get("busy_s", 0.0)
    while time.monotonic() < until:
        answer = rows @ weights
    told = {{"rows": answer.cpu().tolist(), "device": str(answer.device), "pid": os.getpid()}}
    if asked.get("leak"):
        # Outside of the replica's process group, as no honest handler would: it survives the kill.
        child = subprocess.Popen(
            [sys.executable, "-c", LEAK], stdout=subprocess.PIPE, start_new_session=True
        )
        child.stdout.readline()
        told["leak_pid"] = child.pid
    return told
'''
RESNET = '''"""A ResNet-50 with random weights; a request names the seed of its picture."""

import torch
from torch import nn

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, 4 * inner, 1, bias=False), nn.BatchNorm2d(4 * inner),
        )
        self.skip = nn.Identity()
        if stride != 1 or channels != 4 * inner:
            self.skip = nn.Conv2d(channels, 4 * inner, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.path(x) + self.skip(x))


def load(ctx):
    torch.manual_seed(7)
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for blocks, inner, stride in STAGES:
        for block in range(blocks):
            layers.append(Bottleneck(channels, inner, stride if block == 0 else 1))
            channels = 4 * inner
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers).eval().to(ctx.device), torch.rand(1, 3, 224, 224).to(ctx.device)


@torch.inference_mode()
def predict(inputs, ctx):
    model, picture = ctx.state
    return {"best": int(model(picture + 0.001 * inputs["x"]["seed"]).argmax())}
'''
ONNX_MANIFEST = """schema = 1
name = "{name}"
model = "model.onnx"

{more}
[device]
kind = "{kind}"
share = {share}
"""
COMPILED = """
[runtime]
engine = "auto"
"""
FP16 = """
[optimise]
precision = "fp16"
"""


CARD_MIB = 512
"""Memory that a server on several GPUs keeps on each; as much again is written by a copy."""
SERVER = """schema = 1
name = "{name}"

[server]
command = [{command}]
ready = "{ready}"
start_s = 120
stop_grace_s = 2

[device]
kind = "cuda"
count = {count}
"""
PARK = """
[limits]
retry = "always"

[scaling]
idle_s = 1

[openai]

[park]
engine = "vllm"
"""


def cards(folder: Path, name: str, count: int) -> Path:
    """Write a server that has memory on each of its GPUs and copies between them."""
    library = os.environ.get("FN_TEST_LIBCUDA", "libcuda.so.1")
    options = ("--library", library, "--mib", str(CARD_MIB))
    return _server(folder, name, count, Path(sys.executable), "card_server.py", *options)


def parked(folder: Path, name: str, fault: Path | None = None) -> Path:
    """Write an engine that sleeps when it was idle for a second. From when the file `fault` exists,
    it has the fault in it."""
    options = []
    if python := os.environ.get("FN_TEST_TORCH_PYTHON"):
        options += ["--torch"]
    if held := os.environ.get("FN_TEST_HELD"):
        options += ["--held", held, "--load", "1"]
    if fault is not None:
        options += ["--fault-file", str(fault)]
    bundle = folder / name
    bundle.mkdir(parents=True, exist_ok=True)
    # Not copied: it has modules of other folders beside it.
    program = str(Path(__file__).with_name("park_server.py"))
    words = [python or sys.executable, "-B", program, "${SOCKET}", "--enable-sleep-mode", *options]
    text = SERVER.format(name=name, command=_toml(words), ready="/health", count=1)
    (bundle / "function.toml").write_text(text + PARK)
    return bundle


def nccl(folder: Path, name: str, count: int, python: Path) -> Path:
    """Write a server whose answer is an all-reduce of PyTorch with one process per GPU."""
    return _server(folder, name, count, python, "nccl_server.py", "--gpus", "${GPUS}")


def _server(folder: Path, name: str, count: int, python: Path, program: str, *options: str) -> Path:
    bundle = folder / name
    bundle.mkdir(parents=True, exist_ok=True)
    for file in (program, "cuda_driver.py"):
        shutil.copy(Path(__file__).with_name(file), bundle)
    words = [str(python), "-B", program, "--port", "${PORT}", *options]
    text = SERVER.format(name=name, command=_toml(words), ready="/", count=count)
    (bundle / "function.toml").write_text(text)
    return bundle


def _toml(words: list[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def linear(folder: Path, name: str, kind: str = "cuda", share: float = 0.4) -> Path:
    """Write a PyTorch function that holds 512 MiB on its device and returns device and pid."""
    return _handler(folder, name, kind, share, LINEAR.format(kept_mib=512))


def resnet(folder: Path, name: str) -> Path:
    """Write a ResNet-50 as a PyTorch function with a whole GPU."""
    return _handler(folder, name, "cuda", 1.0, RESNET)


def onnx(folder: Path, name: str, model: bytes, kind: str = "cuda", more: str = "") -> Path:
    """Write a function of an ONNX model on a whole device; `more`: further tables of its
    manifest."""
    bundle = folder / name
    bundle.mkdir(parents=True, exist_ok=True)
    manifest = ONNX_MANIFEST.format(name=name, kind=kind, share=1.0, more=more)
    (bundle / "function.toml").write_text(manifest)
    (bundle / "model.onnx").write_bytes(model)
    return bundle


def _handler(folder: Path, name: str, kind: str, share: float, source: str) -> Path:
    bundle = folder / name
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "function.toml").write_text(MANIFEST.format(name=name, kind=kind, share=share))
    (bundle / "handler.py").write_text(source)
    return bundle
