"""Mistakes for `tools/mutants.py`: processes, sparsity, learning, and the lab."""

from __future__ import annotations

from tools.mutant import Mutant

_LEARNT = "tests/estimators/test_estimator_coefficients.py"
_LAYER = "tests/conditional/test_conditional.py"
_SPARSE = "tests/sparsity/test_sparsity.py"
_THRESHOLDS = "tests/sparsity/test_thresholds.py"
_PARALLEL = "tests/conditional/test_parallel.py"
_RUN = "tests/lab/reproduce/test_reproduce.py"
_STATE = "tests/lab/reproduce/test_training_state.py"

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
        "hardgate/_base/averages.py",
        "x, y = (total(each, self.synchronised) for each in (x, y))",
        "x, y = x.detach(), y.detach()",
        f"{_PARALLEL} -k two_processes and StochasticBinary",
    ),
    Mutant(
        "coefficients of one process",
        "hardgate/_base/averages.py",
        "x, y = (total(each, self.synchronised) for each in (x, y))",
        "x = total(x, self.synchronised)",
        f"{_PARALLEL} -k coefficient",
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
        "decay_((self.firing, self.weight), (new * fired, new), self.decay)",
        "decay_((self.firing,), (new * fired,), self.decay)\n        self.weight.fill_(1.0)",
        f"{_SPARSE} -k moving_average",
    ),
    Mutant(
        "outgoing weights are limited",
        "hardgate/sparsity/max_norm.py",
        "units_axis = 1 if isinstance(layer, TransposedLinear) else 0",
        "units_axis = 0",
        f"{_THRESHOLDS} -k max_norm",
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
        "hardgate/learning/coefficients.py",
        "self.update_(-(g * v).sum_to_size(units),",
        "self.update_((g * v).sum_to_size(units),",
        _LEARNT,
    ),
    Mutant(
        "a coefficient per unit is one for all",
        "hardgate/learning/coefficients.py",
        "v.square().sum_to_size(units)",
        "v.square().sum().expand(units)",
        "tests/estimators/test_estimator_learned.py -k reduces",
    ),
    Mutant(
        "a learnt temperature climbs",
        "hardgate/estimators/_relaxation.py",
        "self.adam.step_(self.log, gradient)",
        "self.adam.step_(self.log, -gradient)",
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
        "learning_rate(self.epoch + fraction)",
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
        'record["dataset"] == "mnist" and record["canonical"] for',
        'record["dataset"] == "mnist" for',
        "tests/lab/reproduce/test_terminal.py -k stand_alone",
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
        "hardgate_lab/rig/mnist.py",
        "first = n - min(10_000,",
        "first = n - min(10_001,",
        "tests/lab/rig/test_data.py -k validation",
    ),
]

MORE = [*_SYNCHRONISED, *_SPARSITY, *_LEARNING, *_LAB]
