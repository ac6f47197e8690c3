"""The candidates that are compared: estimators and units, by the code that makes them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from hardgate.estimators import ESTIMATORS, Estimator, ManySamples
from hardgate.units import UNITS, Unit

# Forms worth comparing besides the one that is made without arguments.
_FORMS = {
    "REINFORCE": ("REINFORCE()", 'REINFORCE("mean")', 'REINFORCE("optimal")'),
}
_OWN_IDEAS = ("DoubleCV(2, per_unit=True)",)


def _classes() -> dict[str, type[Estimator] | type[Unit]]:
    """By name; a user may have added units to `hardgate.UNITS`."""
    return {**ESTIMATORS, **{type(unit).__name__: type(unit) for unit in _units()}}


def _units() -> list[Unit]:
    return [make() for make in UNITS.values()]


class UnknownEstimatorError(ValueError):
    """A name that makes neither an estimator nor a unit."""


@dataclass(frozen=True)
class Candidate:
    """An estimator or a unit, and the facts that decide where it can be compared."""

    name: str
    make: Callable[[], Estimator | Unit]

    @property
    def unbiased(self) -> bool:
        """Declared so, for E f(b). A relaxation is unbiased for E f(h) only, which is not it."""
        made = self.make()
        exact = isinstance(made, Estimator) or made.binary or self.own_objective
        return made.unbiased and exact

    @property
    def needs_gradient(self) -> bool:
        """Of f: units back-propagate through it, unless they learn from the loss."""
        made = self.make()
        return made.needs_gradient_of_f if isinstance(made, Estimator) else not made.needs_loss

    @property
    def needs_relaxed(self) -> bool:
        """Evaluates f at points that are not binary."""
        made = self.make()
        return made.needs_relaxed_f if isinstance(made, Estimator) else not made.binary

    @property
    def learns(self) -> bool:
        """Keeps a state that past samples have moved."""
        return learns(self.make())

    @property
    def grows(self) -> bool:
        """Evaluates f more often where there are more units."""
        made = self.make()
        return isinstance(made, Estimator) and isinstance(made.n_evals, str)

    @property
    def own_objective(self) -> bool:
        """Estimates the gradient of something else than E f(b), b ~ Bernoulli(σ(a))."""
        made = self.make()
        return isinstance(made, Unit) and made.own_objective


def learns(made: Estimator | Unit) -> bool:
    """Whether it keeps a state that samples move; a unit does in a module of its own."""
    if isinstance(made, Estimator):
        return bool(made.state)
    return any(True for child in made.children() for _ in child.buffers())


def all_candidates(samples: Iterable[int]) -> list[Candidate]:
    """Every estimator, those of several samples with each number of them, and every unit."""
    named = [c for name in (*ESTIMATORS, *_OWN_IDEAS) for c in candidates_named(name, samples)]
    # StochasticBinary is REINFORCE; both are there when asked for.
    units = [Candidate(name, make) for name, make in UNITS.items() if not make().needs_loss]
    return named + units


def candidates_named(text: str, samples: Iterable[int]) -> list[Candidate]:
    """The candidates that `RLOO`, `RLOO(8)`, `REINFORCE("optimal")` or `StraightThrough` name.

    Args:
        text: a class, or the call that makes one, with literal arguments.
        samples: if it is a bare class whose estimators take several samples: one candidate for
            each of these numbers of samples.
    """
    node = _parse(text)
    if isinstance(node, ast.Call):
        return [_called(text, node)]
    cls = _classes()[node.id]
    if issubclass(cls, ManySamples):
        return [_called(f"{node.id}({k})") for k in samples]
    return [_called(form) for form in _FORMS.get(node.id, (f"{node.id}()",))]


def _parse(text: str) -> ast.Name | ast.Call:
    """The class, or the call; the text is read, never run."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        node = ast.Constant(None)
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name) or name.id not in _classes():
        raise UnknownEstimatorError(
            f"expected one of {', '.join(_classes())}, bare or with arguments like RLOO(4), "
            f"got {text!r}."
        )
    return node if isinstance(node, ast.Call) else name


def _called(text: str, node: ast.Call | None = None) -> Candidate:
    call = node or _parse(text)
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    try:
        args = [ast.literal_eval(arg) for arg in call.args]
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        make = partial(_classes()[call.func.id], *args, **kwargs)
        make()
    except (TypeError, ValueError) as error:
        raise UnknownEstimatorError(
            f"expected arguments that {call.func.id} takes, got {text!r}: {error}"
        ) from None
    return Candidate(ast.unparse(call).replace("'", '"'), make)
