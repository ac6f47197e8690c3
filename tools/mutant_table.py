"""The mistakes that `tools/mutants.py` puts in: a name, the file, old text, new text, tests.

The old text occurs once in its file. The tests are files, and after ` -k ` a choice among them.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    tests: str


_INFER = "tests/kernels/test_inference.py"
_PATHS = "tests/kernels/test_dispatch.py"
_BEST = "tests/lab/reproduce/test_best_epoch.py"
_STS = "tests/units/test_stochastic_times_smooth.py"
_LEARNT = "tests/estimators/test_estimator_coefficients.py"
_FUSED = "tests/conditional/test_fused_sgd.py"
_GATE = "tests/kernels/test_gate_linear.py"
_NET = "tests/kernels/test_kernel_gater.py"
_LAYER = "tests/conditional/test_conditional.py"
_SPARSE = "tests/sparsity/test_sparsity.py"
_THRESHOLDS = "tests/sparsity/test_thresholds.py"
_PARALLEL = "tests/conditional/test_parallel.py"
_RUN = "tests/lab/reproduce/test_reproduce.py"
_STATE = "tests/lab/reproduce/test_training_state.py"

# Those of issue 20, which no test saw.
_ISSUE = [
    Mutant(
        "dense inference without its ReLU",
        "hardgate/kernels/dense.py",
        "    H = H.relu_() if relu else H\n",
        "",
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
        "hardgate_lab/reproduce/record.py",
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
        "_weights(self.model), 1 - keep)",
        "_weights(self.model), keep)",
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
        "self.eta.update(g + r.detach(), v)",
        "self.eta.update(g, v)",
        _LEARNT,
    ),
    Mutant(
        "RELAX's η learns from its own estimate",
        "hardgate/estimators/relax.py",
        "self.eta.update(g + r.detach(), v)",
        "self.eta.update(out.detach(), v)",
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
        "_probe(self.unit, a, noise)",
        "_probe(self.unit, a, None)",
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
        "evaluated = density + probed",
        "evaluated = density",
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
        'Step(options["lr"], self.max_norm or 0.0)',
        'Step(options["lr"], 0.0)',
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
        'alpha=-group["lr"]',
        'alpha=-self.defaults["lr"]',
        f"{_FUSED} -k other_modules or schedule",
    ),
    Mutant(
        "the rate of the start, not of the schedule, in the layers",
        "hardgate/conditional/fused_sgd.py",
        'Step(options["lr"],',
        'Step(self.defaults["lr"],',
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
        "descend(problem.w_out, g.w_out, Step(step.lr, 0.0))",
        "descend(problem.w_out, g.w_out, step)",
        f"{_FUSED} -k max_norm_equals",
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
        "hardgate/kernels/gate_linear.py",
        "db = da.sum(0) if wanted[2] else None",
        "db = da.mean(0) if wanted[2] else None",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: tanh is not differentiated",
        "hardgate/kernels/gate_linear.py",
        "dz = torch.ops.aten.tanh_backward(dz, z)",
        "pass",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: a rectified gate that is off has a gradient",
        "hardgate/kernels/gate_linear.py",
        "da = torch.ops.aten.threshold_backward(da, h, 0)",
        "pass",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: never skips",
        "hardgate/kernels/gate_linear.py",
        "density(da) <= break_even(len(da))",
        "density(da) < 0",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gate_linear: skips at any density",
        "hardgate/kernels/gate_linear.py",
        "density(da) <= break_even(len(da))",
        "density(da) <= 1",
        f"{_GATE} {_NET}",
    ),
    Mutant(
        "gater network: columns limited, not rows",
        "hardgate/kernels/gater_network.py",
        "weight.renorm_(2, 0, step.most)",
        "weight.renorm_(2, 1, step.most)",
        f"{_FUSED} -k max_norm_equals",
    ),
    Mutant(
        "the warning of closed gates comes late",
        "hardgate/conditional/gater.py",
        "if density < sampled / 2:",
        "if density < sampled / 200:",
        f"{_LAYER} -k evaluation",
    ),
    Mutant(
        "telemetry without blocks",
        "hardgate/conditional/telemetry.py",
        "needed=examples * gater + pairs * block * expert",
        "needed=examples * gater + pairs * expert",
        f"{_LAYER} -k telemetry",
    ),
]

_SYNCHRONISED = [
    Mutant(
        "the gradient of a mean over processes is divided twice",
        "hardgate/_base/distributed.py",
        "spread = own * dist.get_world_size()",
        "spread = own",
        _PARALLEL,
    ),
    Mutant(
        "sums stay with their process",
        "hardgate/_base/distributed.py",
        "    dist.all_reduce(x)\n",
        "",
        _PARALLEL,
    ),
    Mutant(
        "a mean counts every process alike",
        "hardgate/_base/distributed.py",
        "(everyone + (spread - spread.detach())) / n",
        "(everyone + (spread - spread.detach())) / (len(x) * dist.get_world_size())",
        "tests/lab/reproduce/test_torchrun.py -k two_processes_are_one",
    ),
    Mutant(
        "thresholds of the first process's rows",
        "hardgate/_base/distributed.py",
        "return torch.cat(parts).to(x.device)",
        "return parts[0].to(x.device)",
        _PARALLEL,
    ),
    Mutant(
        "baselines of one process",
        "hardgate/learning/baselines.py",
        "(total(_sum(each, units), self.synchronised) for each in (weighted, weights))",
        "(_sum(each, units) for each in (weighted, weights))",
        _PARALLEL,
    ),
    Mutant(
        "coefficients of one process",
        "hardgate/learning/coefficient.py",
        "(total(each, self.synchronised) for each in sums)",
        "sums",
        _PARALLEL,
    ),
    Mutant(
        "Adam steps by one process's gradient",
        "hardgate/estimators/_adam.py",
        "total(gradient, self.synchronised).to(x.dtype)",
        "gradient.to(x.dtype)",
        _PARALLEL,
    ),
    Mutant(
        "a share of the batch has the weight of its rows only",
        "hardgate_lab/reproduce/data_parallel.py",
        "(rows.stop - rows.start) * self.world / self._batch",
        "(rows.stop - rows.start) / self._batch",
        "tests/lab/reproduce/test_torchrun.py -k belongs_to_one",
    ),
    Mutant(
        "the last rows of a batch belong to nobody",
        "hardgate_lab/reproduce/data_parallel.py",
        "n * (rank + 1) // world)",
        "n * rank // world + n // world)",
        "tests/lab/reproduce/test_torchrun.py -k belongs_to_one",
    ),
]

_SPARSITY = [
    Mutant(
        "one gate more than the rate",
        "hardgate/sparsity/thresholds.py",
        "rows.kthvalue(n - on, dim=0)",
        "rows.kthvalue(max(1, n - on - 1), dim=0)",
        f"{_THRESHOLDS} -k exact_to_one",
    ),
    Mutant(
        "λ falls inside the band",
        "hardgate/sparsity/adaptive_l1.py",
        "density < self.rate - self.band",
        "density < self.rate",
        f"{_SPARSE} -k l1",
    ),
    Mutant(
        "λ is not held within its range",
        "hardgate/sparsity/adaptive_l1.py",
        ".clamp_(self.least, self.most)",
        ".clamp_(max=self.most)",
        f"{_SPARSE} -k l1",
    ),
    Mutant(
        "λ follows evaluation too",
        "hardgate/sparsity/adaptive_l1.py",
        "        if self.training:\n",
        "        if True:\n",
        f"{_SPARSE} -k l1 or shapes_and_state",
    ),
    Mutant(
        "dead units are not pushed",
        "hardgate/sparsity/firing_rate.py",
        ".clamp(-1, 1) * self.strength",
        ".clamp(0, 1) * self.strength",
        f"{_SPARSE} -k firing or dead",
    ),
    Mutant(
        "the average of firing starts at zero",
        "hardgate/sparsity/firing_rate.py",
        "self.weight.mul_(self.decay).add_(1 - self.decay)",
        "self.weight.fill_(1.0)",
        f"{_SPARSE} -k moving_average",
    ),
    Mutant(
        "outgoing weights are limited",
        "hardgate/sparsity/max_norm.py",
        "layer.weight.renorm_(2, 0, limit)",
        "layer.weight.renorm_(2, 1, limit)",
        f"{_SPARSE} -k max_norm",
    ),
    Mutant(
        "the kept part of off units follows p, not 1 - p",
        "hardgate/units/straight_through.py",
        "self.off_rate * torch.sigmoid(-widen(a.detach()))",
        "self.off_rate * torch.sigmoid(widen(a.detach()))",
        f"tests/units/test_off_units.py {_LAYER} -k off or probe",
    ),
]

_LEARNING = [
    Mutant(
        "the score term's mean counts what is masked out",
        "hardgate/learning/score_loss.py",
        "self.mask.sum().clamp(min=1)",
        "self.mask.numel()",
        "tests/learning/test_score_mask.py",
    ),
    Mutant(
        "the optimal baseline weighs by |h - p|",
        "hardgate/learning/baselines.py",
        "return score.square()",
        "return score.abs()",
        "tests/units/test_paper.py -k corollary",
    ),
    Mutant(
        "a coefficient of the wrong sign",
        "hardgate/learning/coefficient.py",
        "sums = -g.flatten().dot(v), v.dot(v)",
        "sums = g.flatten().dot(v), v.dot(v)",
        _LEARNT,
    ),
    Mutant(
        "a coefficient per unit is one for all",
        "hardgate/learning/coefficient.py",
        "v.square().sum_to_size(units)",
        "v.square().sum().expand(units)",
        "tests/estimators/test_estimator_learned.py -k reduces",
    ),
    Mutant(
        "a learnt temperature climbs",
        "hardgate/estimators/_temperature.py",
        "self.adam.step(self.log, gradient)",
        "self.adam.step(self.log, -gradient)",
        "tests/estimators/test_estimator_learned.py -k reduces",
    ),
    Mutant(
        "Adam's second moment is not corrected",
        "hardgate/estimators/_adam.py",
        "self.second.sqrt().div_((1 - SECOND**n) ** 0.5)",
        "self.second.sqrt()",
        "tests/estimators/test_estimator_parts.py",
    ),
]

_LAB = [
    Mutant(
        "density weighs a short batch as a whole one",
        "hardgate_lab/reproduce/evaluate.py",
        "density += len(y) * _density(model)",
        "density += _BATCH * _density(model)",
        f"{_STATE} -k mean_over_images",
    ),
    Mutant(
        "the rate falls once per epoch",
        "hardgate_lab/reproduce/training_state.py",
        "learning_rate(self.epoch + part)",
        "learning_rate(self.epoch)",
        f"{_STATE} -k rates_fall",
    ),
    Mutant(
        "a resumed run counts its steps from zero",
        "hardgate_lab/reproduce/training_state.py",
        'state["curves"], state["steps"]',
        'state["curves"], 0',
        f"{_RUN} -k interrupted_run_ends and noisy",
    ),
    Mutant(
        "a resumed run has lost its momentum",
        "hardgate_lab/reproduce/training_state.py",
        ").copy_(momentum[name])",
        ").zero_()",
        f"{_RUN} -k interrupted_run_ends and binary",
    ),
    Mutant(
        "only the last checkpoint is kept",
        "hardgate_lab/rig/checkpoint.py",
        "_KEEP = 2",
        "_KEEP = 1",
        "tests/lab/rig/test_checkpoint.py",
    ),
    Mutant(
        "the spread over seeds of a population",
        "hardgate_lab/reproduce/table.py",
        "statistics.stdev(values)",
        "statistics.pstdev(values)",
        "tests/lab/reproduce/test_table.py",
    ),
    Mutant(
        "other data are held against the paper",
        "hardgate_lab/reproduce/table.py",
        'all(r["canonical"] for r in records)',
        "True",
        "tests/lab/reproduce/test_table.py",
    ),
    Mutant(
        "the ELBO's error is that of one draw",
        "hardgate_lab/vae/elbo.py",
        "losses.var(0).sum().item() / draws",
        "losses.var(0).sum().item()",
        "tests/lab/vae/test_elbo.py",
    ),
    Mutant(
        "the use of a class counts all images",
        "hardgate_lab/reproduce/evaluate.py",
        "use / counts.clamp(min=1).unsqueeze(1)",
        "use / len(split.y)",
        f"{_STATE} -k use_of_a_gate",
    ),
    Mutant(
        "the bottleneck has the gates' limit",
        "hardgate_lab/reproduce/network.py",
        "limits[model.layer.gater.hidden] = settings.bottleneck_max_norm",
        "limits[model.layer.gater.hidden] = settings.gate_max_norm",
        f"{_STATE} -k own_limit",
    ),
    Mutant(
        "training density counts from the start of the run",
        "hardgate_lab/reproduce/network.py",
        "        self._on = self._seen = 0\n        return density",
        "        return density",
        f"{_STATE} -k density_in",
    ),
    Mutant(
        "experts and output start at each other's scale",
        "hardgate_lab/reproduce/network.py",
        "self.layer.experts.weight.mul_(settings.expert_init)",
        "self.layer.experts.weight.mul_(settings.out_init)",
        f"{_STATE} -k own_limit",
    ),
    Mutant(
        "momentum is there from the start",
        "hardgate_lab/reproduce/training_state.py",
        "self.settings.momentum_in(self.epoch)",
        "self.settings.momentum",
        f"{_STATE} -k momentum_rises",
    ),
    Mutant(
        "one image more to validate on",
        "hardgate_lab/rig/images.py",
        "first = n - min(10_000,",
        "first = n - min(10_001,",
        "tests/lab/rig/test_data.py -k validation",
    ),
]

MUTANTS = [
    *_ISSUE,
    *_KERNELS,
    *_FUSED_SGD,
    *_GATER,
    *_SYNCHRONISED,
    *_SPARSITY,
    *_LEARNING,
    *_LAB,
]
