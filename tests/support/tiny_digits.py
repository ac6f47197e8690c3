"""Binary images that a small VAE can learn, as files, and `hardgate vae` on them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from typer.testing import CliRunner

from hardgate_lab.cli import app
from hardgate_lab.vae.vae_data import PACKED, PIXELS, TEXT, Digits

SIZES = {"train": 120, "valid": 40, "test": 40}


def images(n: int, seed: int) -> np.ndarray:
    """Four fixed patterns, with a tenth of the pixels turned."""
    patterns = np.random.default_rng(0).integers(0, 2, (4, PIXELS), dtype=np.uint8)
    random = np.random.default_rng(seed)
    turned = (random.random((n, PIXELS)) < 0.1).astype(np.uint8)
    return patterns[random.integers(0, 4, n)] ^ turned


def parts() -> dict[str, np.ndarray]:
    return {part: images(n, seed) for seed, (part, n) in enumerate(SIZES.items())}


def digits() -> Digits:
    tensors = [torch.from_numpy(part) for part in parts().values()]
    return Digits("larochelle", False, "tiny", *tensors)


def packed(folder: Path) -> Path:
    """The folder, with the images in one npz."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {part: np.packbits(array, axis=1) for part, array in parts().items()}
    np.savez_compressed(folder / PACKED, **arrays)  # type: ignore[arg-type]
    return folder


def text(folder: Path) -> Path:
    """The folder, with the images as the three text files."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, array in parts().items():
        lines = (" ".join(map(str, image)) for image in array)
        (folder / TEXT.format(part)).write_text("".join(f"{line} \n" for line in lines))
    return folder


def arguments(*args: str, data: Path, out: Path) -> list[str]:
    """Of `hardgate`: few units and short turns."""
    small = ["vae", "--units=8", "--every=20", "--lr=0.01"]
    return [*small, f"--data={data}", f"--out={out}", f"--figures={out}", *args]


def command(*args: str, data: Path, out: Path) -> list[str]:
    """The same as a command line."""
    return [sys.executable, "-m", "hardgate", *arguments(*args, data=data, out=out)]


def invoke(*args: str, data: Path, out: Path) -> tuple[int, str]:
    """The same in this process: the exit code and the output."""
    result = CliRunner().invoke(app, arguments(*args, data=data, out=out))
    return result.exit_code, result.output
