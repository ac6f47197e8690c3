"""The conditional layer with its weights in bf16, in inference: what halving the memory costs.

y = ((x W_inᵀ + b_in) ⊙ gates) W_outᵀ + b_out at 10 % density, with fp32 weights dense and sparse,
with bf16 weights read by the kernels, and with bf16 weights in torch's own products. What is
computed in fp32 is asserted to be equal before anything is timed; the candidates take turns in one
process, and medians are shown. Run it on an idle machine:

    python benchmarks/half.py
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate.functional import conditional_mlp
from hardgate_lab.rig.machine import processor, versions
from hardgate_lab.rig.timing import interleave

SHAPES = ((1024, 4096, 1024, 1), (784, 2000, 10, 1), (1024, 4096, 1024, 16))
BATCHES, DENSITY, SECONDS = (1, 32, 256), 0.1, 3.0


def torchs_own(x: Tensor, gates: Tensor, w_in: Tensor, w_out: Tensor, block: int) -> Tensor:
    """The layer in bf16 all through, every expert computed."""
    h = linear(x.bfloat16(), w_in) * gates.bfloat16().repeat_interleave(block, 1)
    return linear(h, w_out)


@torch.no_grad()
def row(B: int, n: int, hidden: int, out: int, block: int) -> dict[str, float]:
    """Milliseconds of each."""
    w_in, w_out = torch.randn(hidden, n) / n**0.5, (torch.randn(hidden, out) / hidden**0.5).t()
    half_in, half_out = w_in.bfloat16(), w_out.bfloat16()
    rows = half_out.contiguous()  # the layout that torch prefers
    x, gates = torch.randn(B, n), (torch.rand(B, hidden // block) < DENSITY).float()
    rounded = conditional_mlp(
        x, gates, half_in.float(), None, half_out.float(), None, backend="dense"
    )
    y = conditional_mlp(x, gates, half_in, None, half_out, None, backend="sparse")
    assert (y - rounded).abs().max() <= 3e-5 * rounded.abs().max()
    return interleave(
        {
            "dense": lambda: conditional_mlp(x, gates, w_in, None, w_out, None, backend="dense"),
            "sparse": lambda: conditional_mlp(x, gates, w_in, None, w_out, None, backend="sparse"),
            "sparse, bf16": lambda: conditional_mlp(
                x, gates, half_in, None, half_out, None, backend="sparse"
            ),
            "dense, bf16": lambda: torchs_own(x, gates, half_in, rows, block),
        },
        SECONDS,
    )


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    named = ", ".join(f"{name} {version}" for name, version in versions().items())
    print(f"{named}, {processor()}, {torch.get_num_threads()} threads")
    for n, hidden, out, block in SHAPES:
        for B in BATCHES:
            times = row(B, n, hidden, out, block)
            label = f"{n}-{hidden}-{out}" + (f" blocks of {block}" if block > 1 else "")
            print(f"{label:28} B={B:<4}", end="")
            dense = times["dense"]
            cells = (f"  {name} {ms:.3f} ms ({dense / ms:.1f}×)" for name, ms in times.items())
            print("".join(cells), flush=True)


if __name__ == "__main__":
    main()
