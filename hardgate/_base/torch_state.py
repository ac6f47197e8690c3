"""What torch is doing at the moment: the only file that uses torch's private state.

A kernel reads memory, and an estimator adds nodes to autograd's graph. Both are wrong while torch
compiles, traces or transforms, and torch has no public way to ask. Every private name of torch that
this library uses is here, so that a new version of torch can break this file only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _functorch
from torch.autograd import forward_ad

is_wrapped = _functorch.is_functorch_wrapped_tensor  # made by a torch.func transform
is_batched = _functorch.is_batchedtensor  # made by vmap
unwrapped = _functorch.get_unwrapped  # the tensor one transform further out


def compiling() -> bool:
    """Whether torch.compile or torch.export traces this code."""
    return torch.compiler.is_compiling()


def transforming() -> bool:
    """Whether a torch.func transform (grad, vmap, …) is running."""
    return _functorch.get_dynamic_layer_stack_depth() > 0


def forward_mode() -> bool:
    """Whether forward-mode differentiation is running."""
    return bool(forward_ad._current_level >= 0)


def has_tangent(t: Tensor | None) -> bool:
    """Whether forward-mode differentiation follows this tensor."""
    return t is not None and forward_ad.unpack_dual(t).tangent is not None


def eager() -> bool:
    """Whether nothing compiles or transforms: autograd's graph may have nodes of our own."""
    return not (compiling() or transforming() or forward_mode())


def tracing() -> bool:
    """Whether operations are recorded instead of run, or tensors may have no memory.

    A kernel is no operation of torch: in a graph of torch.jit.trace or make_fx its output would be
    uninitialised memory.
    """
    if compiling() or torch._C._is_tracing():
        return True
    if not dispatch_modes():
        return False
    modes = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(m) is not None for m in (modes.FAKE, modes.PROXY))


def dispatch_modes() -> int:
    """How many dispatch modes (FlopCounterMode, FakeTensorMode, …) are active."""
    return torch._C._len_torch_dispatch_stack()


def backward_pass() -> int:
    """A number for the backward pass that is running; -1 outside of one."""
    return torch._C._current_graph_task_id()


def runs_in_this_backward(node: Any) -> bool:
    """Whether the backward pass that is running will run this node of the graph."""
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # torch.autograd.grad returns the gradient instead of storing it
        return False


def outlived(t: Tensor) -> bool:
    """Whether the tensor belongs to a torch.func transform that has ended."""
    return _functorch.unwrap_if_dead(t) is not t


def version(t: Tensor) -> int:
    """How often the tensor was changed in place; 0 where torch does not count."""
    return 0 if compiling() or t.is_inference() else t._version


def has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, which a path that does not call it would skip."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def forward_pre_hooks(module: nn.Module) -> Iterable[Any]:
    """The hooks that run before the module's forward pass."""
    return module._forward_pre_hooks.values()


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether hooks wait for the gradient of this parameter."""
    hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
    return any(map(bool, hooks))


def children(module: nn.Module) -> list[tuple[str, Any]]:
    """The names and children of a module; unlike named_children(), with those it has twice."""
    return list(module._modules.items())


def declares(module: nn.Module, parameter: str) -> bool:
    """Whether the module has a parameter of this name, even if it is None."""
    return parameter in module._parameters
