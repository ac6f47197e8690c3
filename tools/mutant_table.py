"""The mistakes that `tools/mutants.py` puts in: kernels, layers, and those of issue 20.

The others are in `tools/more_mutants.py`.
"""

from __future__ import annotations

from tools.more_mutants import MORE
from tools.mutant import Mutant

__all__ = ["MUTANTS", "Mutant"]

_INFER = "tests/kernels/test_inference.py"
_PATHS = "tests/kernels/test_dispatch.py"
_BEST = "tests/lab/reproduce/test_best_epoch.py"
_STS = "tests/units/test_stochastic_times_smooth.py"
_LEARNT = "tests/estimators/test_estimator_coefficients.py"
_FUSED = "tests/conditional/test_fused_sgd.py"
_GATE = "tests/kernels/test_gate_linear.py"
_NET = "tests/kernels/test_gater_network.py"
_LAYER = "tests/conditional/test_conditional.py"
_THRESHOLDS = "tests/sparsity/test_thresholds.py"

# Those of issue 20, which no test saw.
_ISSUE = [
    Mutant(
        "dense inference without its ReLU",
        "hardgate/kernels/dense.py",
        "return H.relu_() if problem.relu else H",
        "return H",
        _INFER,
    ),
    Mutant(
        "thresholds calibrated on test images",
        "hardgate_lab/reproduce/train.py",
        "calibrate(model, data.train, run.settings.rate)",
        "calibrate(model, data.test, run.settings.rate)",
        f"{_BEST} -k other_test_images",
    ),
    Mutant(
        "the training loss of the last epoch",
        "hardgate_lab/reproduce/row_record.py",
        'run.curves["train_loss"][best]',
        'run.curves["train_loss"][-1]',
        f"{_BEST} -k what_is_kept",
    ),
    Mutant(
        "the last of equal epochs is the best",
        "hardgate_lab/reproduce/training_state.py",
        "return 1 + scores.index(min(scores))",
        "return len(scores) - scores[::-1].index(min(scores))",
        f"{_BEST} -k what_is_kept",
    ),
    Mutant(
        "equal errors are not told apart by the loss",
        "hardgate_lab/reproduce/training_state.py",
        'zip(self.curves["valid_error"], self.curves["valid_loss"], strict=True)',
        'zip(self.curves["valid_error"], strict=True)',
        f"{_BEST} -k what_is_kept",
    ),
    Mutant(
        "the average keeps 1 - keep",
        "hardgate_lab/reproduce/training_state.py",
        "mean.lerp_(w, 1 - keep)",
        "mean.lerp_(w, keep)",
        f"{_BEST} -k averaged",
    ),
    Mutant(
        "label 10 is accepted",
        "hardgate_lab/rig/idx.py",
        "if y[worst] >= CLASSES:",
        "if y[worst] > CLASSES:",
        "tests/lab/rig/test_idx.py -k refuses",
    ),
    Mutant(
        "corrected STS differentiates the wrong half",
        "hardgate/functional/neurons.py",
        "b = surrogate(b, drawn)",
        "b = surrogate(b, smooth)",
        _STS,
    ),
    Mutant(
        "STS noise in the wrong half",
        "hardgate/functional/neurons.py",
        'smooth = drawn if placement == "both" else sqrt_sigmoid(x)',
        'smooth = drawn\n    drawn = drawn if placement == "both" else sqrt_sigmoid(x)',
        _STS,
    ),
    Mutant(
        "STS placement the other way round",
        "hardgate/functional/neurons.py",
        'placement == "both" else',
        'placement == "stochastic" else',
        _STS,
    ),
    Mutant(
        "STS starts at another threshold",
        "hardgate/units/stochastic_times_smooth.py",
        "natural_threshold: ClassVar[float] = -math.log(3)",
        "natural_threshold: ClassVar[float] = -math.log(2)",
        _STS,
    ),
    Mutant(
        "STS threshold shifted the wrong way",
        "hardgate/units/stochastic_times_smooth.py",
        "self.threshold.sub_(self.shift)",
        "self.threshold.add_(self.shift)",
        _STS,
    ),
    Mutant(
        "RELAX's η learns without the network's part",
        "hardgate/estimators/relax.py",
        "self.eta.learn_(g + r.detach(), v)",
        "self.eta.learn_(g, v)",
        _LEARNT,
    ),
    Mutant(
        "RELAX's η learns from its own estimate",
        "hardgate/estimators/relax.py",
        "self.eta.learn_(g + r.detach(), v)",
        "self.eta.learn_(out.detach(), v)",
        _LEARNT,
    ),
    Mutant(
        "MuProp's baseline learns the loss",
        "hardgate/estimators/muprop.py",
        "self.baseline.step([score], [rest], update",
        "self.baseline.step([score], [losses.detach().unsqueeze(-1)], update",
        _LEARNT,
    ),
    Mutant(
        "the gater's probe ignores the drawn noise",
        "hardgate/conditional/gater.py",
        "unit.probe(a, noise) if",
        "unit.probe(a, None) if",
        f"{_LAYER} -k probe",
    ),
    Mutant(
        "decisiveness from h",
        "hardgate/sparsity/statistics.py",
        "p = examples(unit.active_probability(widen(a)))",
        "p = on",
        f"{_THRESHOLDS} -k decisiveness",
    ),
    Mutant(
        "decisiveness from E[h]",
        "hardgate/sparsity/statistics.py",
        "unit.active_probability(widen(a))",
        "unit.mean(widen(a))",
        f"{_THRESHOLDS} -k decisiveness",
    ),
    Mutant(
        "the mean of the rectified Gaussian beyond 40 scales",
        "hardgate/noise.py",
        "+ torch.relu(a - 40))",
        "+ torch.relu(a - 40) / self.scale)",
        "tests/test_noise.py -k rectif",
    ),
    Mutant(
        "later batches are not thinned",
        "hardgate/sparsity/thresholds.py",
        "stride * 2",
        "stride",
        f"{_THRESHOLDS} -k thin",
    ),
    Mutant(
        "thinning starts anew with every batch",
        "hardgate/sparsity/thresholds.py",
        "a[-seen % stride :: stride]",
        "a[::stride]",
        f"{_THRESHOLDS} -k thin",
    ),
]

_KERNELS = [
    Mutant(
        "eight examples are not few",
        "hardgate/kernels/dispatch.py",
        "if few(w_in.dtype) >= B:",
        "if few(w_in.dtype) > B:",
        _PATHS,
    ),
    Mutant(
        "many examples from 129 on",
        "hardgate/kernels/dispatch.py",
        "batch < _MANY or",
        "batch <= _MANY or",
        _PATHS,
    ),
    Mutant(
        "blocks count only where examples are few",
        "hardgate/kernels/dispatch.py",
        "batch < _MANY or block >= BLOCK",
        "batch < _MANY and block >= BLOCK",
        _PATHS,
    ),
    Mutant(
        "a block of BLOCK is no block",
        "hardgate/kernels/dispatch.py",
        "block >= BLOCK",
        "block > BLOCK",
        _PATHS,
    ),
    Mutant(
        "probed gates cost nothing",
        "hardgate/kernels/dispatch.py",
        "evaluated += sparse.density(",
        "sparse.density(",
        _PATHS,
    ),
    Mutant(
        "gates that are on count as probed",
        "hardgate/kernels/dispatch.py",
        "probe.masked_fill(gates != 0, 0)",
        "probe",
        _PATHS,
    ),
    Mutant(
        "kernels for ten times larger layers only",
        "hardgate/kernels/dispatch.py",
        "SMALL = 1_000_000",
        "SMALL = 10_000_000",
        _PATHS,
    ),
    Mutant(
        "the sample of gates is counted as all",
        "hardgate/kernels/sparse.py",
        "return on / max(1, -(-B // every) * G)",
        "return on / max(1, B * G)",
        _PATHS,
    ),
    Mutant(
        "dense: the gradient of an off gate without a probe",
        "hardgate/kernels/dense.py",
        "on if p.probe is None else p.probe.masked_fill(on, 1.0)",
        "1.0 if p.probe is None else p.probe.masked_fill(on, 1.0)",
        "tests/kernels/test_kernels.py -k probe",
    ),
    Mutant(
        "dense: the gradient of a ReLU at its inputs",
        "hardgate/kernels/dense.py",
        "(ds * g).masked_fill(H <= 0, 0) if p.relu else ds * g",
        "(ds * g).masked_fill(H < 0, 0) if p.relu else ds * g",
        "tests/kernels/test_kernels.py -k blocks or gradcheck",
    ),
]

_FUSED_SGD = [
    Mutant(
        "no limit of norms in the fused step",
        "hardgate/conditional/fused_sgd.py",
        'Step(float(options["lr"]), self.max_norm or 0.0)',
        'Step(float(options["lr"]), 0.0)',
        f"{_FUSED} -k max_norm_equals",
    ),
    Mutant(
        "the gater steps at the layer's rate",
        "hardgate/conditional/fused_sgd.py",
        "group = 1 if isinstance(module, Gater) and gater_lr is not None else 0",
        "group = 0",
        f"{_FUSED} -k rate_of_its_own",
    ),
    Mutant(
        "the rate of the start, not of the schedule, elsewhere",
        "hardgate/conditional/fused_sgd.py",
        'alpha=group["lr"]',
        'alpha=self.defaults["lr"]',
        f"{_FUSED} -k other_modules or schedule",
    ),
    Mutant(
        "the rate of the start, not of the schedule, in the layers",
        "hardgate/conditional/fused_sgd.py",
        'Step(float(options["lr"]),',
        'Step(float(self.defaults["lr"]),',
        f"{_FUSED} -k equals_sgd_with",
    ),
    Mutant(
        "two backward passes before a step",
        "hardgate/kernels/update.py",
        "        if self._claimed:\n",
        "        if False:\n",
        f"{_FUSED} -k cannot_do",
    ),
    Mutant(
        "outgoing weights limited as if they were incoming",
        "hardgate/kernels/update.py",
        "descend(w_out, g.w_out, Step(step.lr, 0.0))",
        "descend(w_out, g.w_out, step)",
        f"{_FUSED} -k outgoing",
    ),
    Mutant(
        "biases climb",
        "hardgate/kernels/update.py",
        "bias.detach().sub_(gradient, alpha=step.lr)",
        "bias.detach().add_(gradient, alpha=step.lr)",
        f"{_FUSED} -k equals_sgd_with",
    ),
    Mutant(
        "norms limited before the step",
        "hardgate/kernels/update.py",
        """    w.detach().add_(gradient, alpha=-step.lr)
    if step.most > 0:
        w.detach().renorm_(2, 0, step.most)
""",
        """    if step.most > 0:
        w.detach().renorm_(2, 0, step.most)
    w.detach().add_(gradient, alpha=-step.lr)
""",
        f"{_FUSED} -k max_norm_equals",
    ),
    Mutant(
        "autograd is not told of changed weights",
        "hardgate/kernels/update.py",
        "    torch.autograd.graph.increment_version([w for w in weights if w is not None])",
        "    return",
        f"{_FUSED} -k as_they_were",
    ),
]

_GATER = [
    Mutant(
        "gate_linear: the gradient of b is a mean",
        "hardgate/kernels/op.py",
        "db = da.sum(0) if wanted[2] else None",
        "db = da.mean(0) if wanted[2] else None",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: tanh is not differentiated",
        "hardgate/kernels/op.py",
        "ds = torch.ops.aten.tanh_backward(dz, z)",
        "ds = dz",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: a rectified gate that is off has a gradient",
        "hardgate/functional/neurons.py",
        "return (widen(a) + z).relu_().to(a.dtype)",
        "x = widen(a) + z\n    return surrogate(torch.relu(x), x).to(a.dtype)",
        "tests/units/test_claims.py -k off_gradient",
    ),
    Mutant(
        "gate_linear: never skips",
        "hardgate/kernels/op.py",
        "sparse.density(da) <= break_even(len(da))",
        "sparse.density(da) < 0",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: skips at any density",
        "hardgate/kernels/op.py",
        "sparse.density(da) <= break_even(len(da))",
        "sparse.density(da) <= 1",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gater network: columns limited, not rows",
        "hardgate/kernels/op.py",
        "weight.renorm_(2, 0, step.most)",
        "weight.renorm_(2, 1, step.most)",
        f"{_NET} {_FUSED} -k max_norm_equals or limit",
    ),
    Mutant(
        "the warning of closed gates comes late",
        "hardgate/conditional/gater.py",
        "if density < sampled / 2:",
        "if density < sampled / 200:",
        "tests/conditional/test_closed_gates.py",
    ),
    Mutant(
        "telemetry without blocks",
        "hardgate/conditional/telemetry.py",
        "needed=examples * gater + pairs * block * expert",
        "needed=examples * gater + pairs * expert",
        f"{_LAYER} -k telemetry",
    ),
]

MUTANTS = [*_ISSUE, *_KERNELS, *_FUSED_SGD, *_GATER, *MORE]
