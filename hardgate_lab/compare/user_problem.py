"""A problem of the user's own: a Python file with `logits` and `f`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from hardgate._base import torch_state
from hardgate_lab.rig.problems import GradientProblem

_WRITE = (
    "Write, for example:\n"
    "    logits = torch.zeros(10)\n"
    "    def f(b): return (b - 0.4).square().sum(-1)"
)
_SHOWN = 12  # units of a b in a message


class UserProblemError(ValueError):
    """The file does not hold a problem; the message says what it should hold."""


class NotBinaryError(UserProblemError):
    """f fails at points that are not binary: of no concern to those who do not ask for them."""


def load(path: Path) -> GradientProblem:
    """Run the file and take `logits` `[D]` and `f` from it.

    Args:
        path: of a Python file. `f` maps samples `[..., D]` to one loss each, `[...]`; several
            axes may come in front. A docstring becomes the problem's description.

    Returns:
        the problem, tried out on a few samples; its f raises `UserProblemError` wherever it
        fails later.
    """
    module = _run(path)
    logits = _logits(path, getattr(module, "logits", None))
    f = getattr(module, "f", None)
    if not callable(f):
        raise UserProblemError(f"{path} expected a function f(b), got {_kind(f)}. {_WRITE}")

    def checked(b: Tensor) -> Tensor:
        version = torch_state.version(b)
        try:
            losses = f(b)
        except Exception as error:  # whatever it is that a user's f does
            raise _failed(path, b, error) from error
        if torch_state.version(b) != version:
            raise UserProblemError(
                f"f of {path} expected to leave b as it is, got b changed in place. Write "
                "b = 2 * b, not b *= 2."
            )
        return _losses(path, b, losses)

    about = (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    problem = GradientProblem(about or f"the problem of {path}", logits, checked)
    _try(problem)
    _repeat(path, problem)
    return problem


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserProblemError(f"expected a Python file, got {path}, which is none. {_WRITE}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # what lies beside the file can be imported
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserProblemError(
            f"{path} expected to run to its end, got {_where(path, error)}. "
            f"Try python {path} by itself."
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _logits(path: Path, logits: object) -> Tensor:
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 1:
        raise UserProblemError(
            f"{path} expected logits, a floating point tensor [D], got {_kind(logits)}. {_WRITE}"
        )
    if logits.numel() == 0 or not logits.isfinite().all():
        raise UserProblemError(
            f"{path} expected finite logits of at least one unit, got {logits.tolist()[:5]}. "
            f"{_WRITE}"
        )
    return logits.detach()


def _try(problem: GradientProblem) -> None:
    """As estimators call it: with axes in front, also of length 1; and at all off and all on."""
    D, generator = problem.logits.numel(), torch.Generator().manual_seed(0)
    for shape in ((2, 3, D), (2, D), (1, 1, D)):
        problem.f((torch.rand(shape, generator=generator) < 0.5).to(problem.logits))
    problem.f(problem.logits.new_tensor([[0.0], [1.0]]).repeat(1, D))


def _repeat(path: Path, problem: GradientProblem) -> None:
    """What is held against the truth must be the same f: one with noise of its own is not."""
    b = torch.ones_like(problem.logits).expand(8, -1).tril()
    first, again = problem.f(b.clone()), problem.f(b.clone())
    if not torch.allclose(first, again, rtol=1e-5):
        k = (first - again).abs().argmax()
        raise UserProblemError(
            f"f of {path} expected to give the same losses for the same b, got "
            f"{first[k].item():g} and {again[k].item():g}. Write net.eval() where it has dropout, "
            "or average over its noise."
        )


def _failed(path: Path, b: Tensor, error: Exception) -> UserProblemError:
    """f raised an error of its own."""
    if not _binary(b).all():
        return NotBinaryError(f"f of {path} fails where b is not binary: {_where(path, error)}")
    shape = tuple(b.shape)
    return UserProblemError(
        f"f of {path} expected to map samples {shape} to losses {shape[:-1]}, got "
        f"{_where(path, error)}. Use operations on the last axis only, like sum(-1)."
    )


def _losses(path: Path, b: Tensor, losses: object) -> Tensor:
    """What f returned, if it is one finite loss for each sample."""
    shape = tuple(b.shape)
    if not isinstance(losses, Tensor) or losses.shape != b.shape[:-1]:
        raise UserProblemError(
            f"f of {path} expected to map samples {shape} to one loss each, {shape[:-1]}, "
            f"got {_kind(losses)}. Reduce over the last axis only, like sum(-1), and do not "
            "squeeze()."
        )
    if not losses.is_floating_point():
        raise UserProblemError(
            f"f of {path} expected floating point losses, got {_kind(losses)} with values like "
            f"{losses.flatten()[:3].tolist()}. Write losses.float()."
        )
    if losses.isfinite().all():
        return losses
    wrong = ~losses.isfinite()
    binary = wrong & _binary(b)
    if not binary.any():
        raise NotBinaryError(f"f of {path} is not finite where b is not binary")
    raise UserProblemError(
        f"f of {path} expected a finite loss for every b of zeros and ones, got "
        f"{losses[binary][0].item()} at b = {_shortened(b[binary][0])}. Mend f there, for example "
        "with clamp(min=1e-6) before a log."
    )


def _binary(b: Tensor) -> Tensor:
    """Which samples are of zeros and ones only: `[...]`."""
    return ((b == 0) | (b == 1)).all(-1)


def _shortened(b: Tensor) -> str:
    digits = ", ".join(f"{x:.0f}" for x in b[:_SHOWN].tolist())
    return f"[{digits}, …]" if len(b) > _SHOWN else f"[{digits}]"


def _kind(x: object) -> str:
    if isinstance(x, Tensor):
        return f"a {x.dtype} tensor of shape {tuple(x.shape)}"
    return "nothing of that name" if x is None else f"a {type(x).__name__}"


def _where(path: Path, error: BaseException) -> str:
    """The error, and the line of the user's file that it comes from."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).name == path.name
    ]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    at = f" (line {lines[-1]})" if lines and lines[-1] else ""
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}{at}"
