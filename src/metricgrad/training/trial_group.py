"""Trials that are trained side by side: one loss, several slopes and learning rates, all folds.

The models of a group are stacked into one (`stack.py`) where that is possible, so that five folds
and four rates cost little more than a single model. Every trial keeps its model at the epoch that
`BestEpochs` calls best. All that the next epoch depends on is a tensor, so a checkpoint after every
epoch is enough to continue exactly.

Tensors have a leading dimension of R models: the K folds of the first trial, then of the next.
"""

import copy
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.progress import Tell
from metricgrad.surrogates import BilevelLoss, MetricLoss, with_memory
from metricgrad.surrogates.calls import bound
from metricgrad.training.candidates import ordinary_candidate
from metricgrad.training.checkpoint import State, named, part_of, read_checkpoint, write_checkpoint
from metricgrad.training.data import NO_BATCH, Batch, FoldBatches
from metricgrad.training.joint import JointTraining
from metricgrad.training.split import Split
from metricgrad.training.stack import Stack, half_cosine, modes_kept
from metricgrad.training.trials import BestEpochs, PlannedTrial, Trial, TrialSettings

_MODEL_STEPS = 3  # of an iteration of `method="bilevel"`
_UNIVERSAL_STEPS = 2000


@dataclass(eq=False)
class TrialGroup:
    """Trains trials whose candidates are `kin`, each from the weights that the model has."""

    model: nn.Module
    planned: list[PlannedTrial]
    split: Split
    epochs: int
    settings: TrialSettings
    stopped: bool = field(default=False, init=False)  # by Ctrl-C

    def __post_init__(self) -> None:
        self._epoch = 0
        self._folds = len(self.split.folds)
        self._validation = self.split.validation
        metric = self._validation.metric
        first = self.planned[0].candidate
        self._warm_up = self.epochs // 2 if first.warm_start else 0
        trials = len(self.planned)
        self._best = BestEpochs(self.epochs, trials, self._warm_up, metric.higher_is_better)
        self._kept: State = {}

        models = trials * self._folds
        self._modules = [copy.deepcopy(self.model) for _ in range(models)]
        self._module = self._modules[0]
        rates = torch.tensor([each.rate for each in self.planned]).repeat_interleave(self._folds)
        clip = self.settings.clip
        self._stack = Stack(self._modules, rates.unsqueeze(-1), clip, together=models > 1)
        self._stack.decay = self.settings.decay
        scales = torch.tensor([each.candidate.scale(metric) for each in self.planned])
        self._scales = None if (scales == 1).all() else scales.repeat_interleave(self._folds)
        self._ordinary = ordinary_candidate(metric, self._validation.sets).loss(metric, 0)
        self._losses = [first.loss(metric, self.settings.seed)]
        if self.settings.memory:  # every model remembers its own scores
            size = self.settings.memory
            copies = [copy.deepcopy(self._losses[0]) for _ in self._modules]
            self._losses = [with_memory(loss, size) for loss in copies]
        elif isinstance(self._losses[0], MetricLoss):
            self._losses[0].models = len(self._modules)

    def run(
        self, path: Path | None = None, tell: Tell = lambda *_: None, only: int | None = None
    ) -> list[Trial]:
        """Trains to the end, or to the epoch `only`, which then is the only one to be validated.

        If there is a checkpoint at `path`, training continues from it. If Ctrl-C is pressed, the
        trials are as good as they were by then.
        """
        with torch.random.fork_rng(devices=[]), modes_kept(self._module):
            self._begin()
            must_match = self._must_match()
            if path is not None and path.exists():
                self._restore(read_checkpoint(path, self._state(), must_match, varying="loss."))
            last = self.epochs if only is None else only
            patience = self.settings.patience if only is None else None
            try:
                while self._epoch < last and not self._best.gave_up(self._epoch, patience):
                    losses = self._train()
                    self._epoch += 1
                    if only in (None, self._epoch):
                        self._validate(losses)
                    if path is not None:
                        write_checkpoint(path, self._state(), must_match)
                    tell(1, self._note())
            except KeyboardInterrupt:
                self.stopped = True
            tell(self.epochs - self._epoch, "")
        return [self._trial(number) for number in range(len(self.planned))]

    def train_only(self, epochs: int) -> tuple[State, Tensor]:
        """The state of one model after its first epochs, and its scores `[K, V, ...]`."""
        with torch.random.fork_rng(devices=[]), modes_kept(self._module):
            while self._epoch < epochs:
                self._train()
                self._epoch += 1
            scores = self._scores()[0]
        self._stack.part()
        return {name: value.clone() for name, value in self._module.state_dict().items()}, scores

    def _must_match(self) -> dict[str, Any]:
        """What a checkpoint must share with this run; the keys are those of its file."""
        settings = asdict(self.settings)
        must_match = settings.pop("must_match")
        return {
            "entrants": [[str(candidate), rate] for candidate, rate in self.planned],
            "epochs": self.epochs,
            "metric": self._validation.metric.name,
            "batches": self.split.batches.steps,
            "validation": self._validation.items.live.sum(-1).tolist(),
            **settings,
            **must_match,
        }

    def _begin(self) -> None:
        """Finds out whether the models can run together, and what there is to keep of them."""
        try:
            scores = self._scores()
        except (RuntimeError, ValueError):
            if not self._stack.together:
                raise
            self._stack.together = False
            scores = self._scores()
        threshold = self._validation.measure(scores[0]).threshold
        size = () if threshold is None else threshold.shape
        self._kept = {
            "threshold": torch.full((len(self.planned), *size), torch.nan),
            "scores": torch.zeros_like(scores),
            **{name: each.clone() for name, each in self._stack.weights().items()},
        }

    def _train(self) -> Tensor:
        """Trains one epoch; the mean loss of every trial."""
        self._module.train()
        torch.manual_seed(self.settings.seed * 7919 + self._epoch)
        sums = torch.zeros(len(self._modules), dtype=torch.float64)
        steps = 0
        for batch in self.split.batches.epoch(self._epoch, len(self.planned)):
            values = self._values(self._item_scores(batch).nan_to_num(0.0), batch)
            self._stack.descend(values, self._share(steps))
            sums += values.detach()
            steps += 1
        if not steps:
            raise ValueError(NO_BATCH)
        return (sums / steps).unflatten(0, (-1, self._folds)).mean(-1)

    def _share(self, step: int) -> float:
        """The share of the learning rate at a step: half a cosine, anew after a warm start."""
        start = self._warm_up if self._epoch >= self._warm_up else 0
        end = self.epochs if self._epoch >= self._warm_up else self._warm_up
        done = self._epoch - start + step / self.split.batches.steps
        return half_cosine(done / max(1, end - start))

    def _values(self, scores: Tensor, batch: Batch) -> Tensor:
        """The loss of every model, `[R]`."""
        if self._epoch < self._warm_up:
            values = self._ordinary.per_set(scores, batch.y, batch.where)
            return _mean(values, torch.ones_like(values, dtype=torch.bool))
        if self._scales is not None:
            scores = scores * self._scales.view(-1, *[1] * (scores.dim() - 1))
        if not self.settings.memory:
            (loss,) = self._losses
            with bound(loss, batch.rows):
                return _mean(*loss.losses(scores, batch.y, batch.where))
        each = [
            loss.losses(scores[row], batch.y[row], None) for row, loss in enumerate(self._losses)
        ]
        return torch.stack([torch.where(defined, value, 0.0) for value, defined in each])

    def _item_scores(self, batch: Batch) -> Tensor:
        return self._validation.metric.item_scores(self._stack(batch.x), batch.y)

    @torch.no_grad()
    def _scores(self) -> Tensor:
        """Scores of the validation data, `[trials, K, V, ...]`."""
        self._module.eval()
        found = []
        targets = []
        for batch in self.split.data.batches(len(self.planned)):
            found.append(self._item_scores(batch))
            targets.append(batch.y[:1])
        loaded = self.split.data.index is None
        if loaded and not torch.equal(torch.cat(targets, 1), self._validation.items.target):
            raise ValueError(
                "the validation loader gives other items, or another order, each time; "
                "do not shuffle it"
            )
        return torch.cat(found, 1).unflatten(0, (len(self.planned), self._folds))

    def _validate(self, losses: Tensor) -> None:
        """Measures every trial, and keeps the models of those that are at their best."""
        scores = self._scores()
        for number in range(len(self.planned)):
            if not scores[number].isfinite().all():
                continue  # it diverged, but its earlier epochs still count
            value, threshold = self._validation.measure(scores[number])
            if not self._best.record(number, self._epoch, losses[number].item(), value):
                continue
            rows = slice(number * self._folds, (number + 1) * self._folds)
            self._kept["scores"][number] = scores[number]
            for name, each in self._stack.weights().items():
                self._kept[name][rows] = each[rows]
            if threshold is not None:
                self._kept["threshold"][number] = threshold

    def _note(self) -> str:
        best = self._best.best_value()
        if best is None:
            return ""
        return f"{self.planned[0].candidate.method}: {self._validation.metric.name} {best:.4f}"

    def _trial(self, number: int) -> Trial:
        value = self._best.value[number].item()
        threshold = self._kept["threshold"][number]
        return Trial(
            *self.planned[number],
            epochs=self.epochs,
            epoch=int(self._best.epoch[number]),
            value=None if math.isnan(value) else value,
            threshold=None if threshold.isnan().any() else threshold,
            scores=self._kept["scores"][number],
            state=self._best_state(number) if self._folds == 1 else {},
            curve=self._best.curve[:, number],
        )

    @torch.no_grad()
    def _best_state(self, row: int) -> State:
        """A model's best state, by way of the module, which knows what is tied or not saved."""
        sizes = [each.numel() for each in self._module.parameters()]
        parts = self._kept["vector"][row].split(sizes)
        for each, part in zip(self._module.parameters(), parts, strict=True):
            each.copy_(part.view_as(each))
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._kept[f"buffer.{name}"][row])
        return {name: value.clone() for name, value in self._module.state_dict().items()}

    def _state(self) -> State:
        """Everything that the next epoch depends on; the names are those of the checkpoint."""
        state = self._stack.state("crew") | named("best.", self._kept) | self._best.state()
        state["epoch"] = torch.tensor(self._epoch)
        if self._losses[0].remembers:
            for row, loss in enumerate(self._losses):
                state |= named(f"loss.{row}.", loss.state_dict())
        return state

    def _restore(self, state: State) -> None:
        self._stack.restore(state, "crew")
        self._kept = {name: state[f"best.{name}"] for name in self._kept}
        self._best.restore(state)
        self._epoch = int(state["epoch"])
        if self._losses[0].remembers:
            for row, loss in enumerate(self._losses):
                loss.load_state_dict(part_of(state, f"loss.{row}."))


class JointTrialGroup(TrialGroup):
    """Trials of `method="bilevel"`: every model is trained along with its loss, by Algorithm 1.

    The loss learns from made-up sets once; every model then refines its own copy of it.
    """

    def __post_init__(self) -> None:
        batches = self.split.batches
        settings = self.settings
        if not isinstance(batches, FoldBatches) or settings.memory:
            raise ValueError(
                "method='bilevel' draws its own batches; pass train=(x, y) in memory, and memory=0"
            )
        if settings.decay:
            raise ValueError(
                f"method='bilevel' has no weight decay; pass decay=0. Got {settings.decay}"
            )
        if batches.balanced:
            raise ValueError(
                "method='bilevel' draws its own batches, in which classes keep their shares; "
                "pass balanced=False"
            )
        super().__post_init__()
        (loss,) = self._losses
        assert isinstance(loss, BilevelLoss)
        self._iterations = -(-batches.steps // _MODEL_STEPS)
        self._runs: list[JointTraining] = []
        for row, module in enumerate(self._modules):
            trial, fold = divmod(row, self._folds)
            own = batches.items.take(batches.folds[fold].train)
            run = JointTraining(
                module,
                loss if row == 0 else copy.deepcopy(loss),
                own.x,
                own.y,
                model_rate=self.planned[trial].rate,
                model_steps=_MODEL_STEPS,
                decay=self._iterations * self.epochs,
                clip=settings.clip,
                batch=batches.size,
                universal={"steps": _UNIVERSAL_STEPS, "progress": False},
                generator=torch.Generator().manual_seed(settings.seed),
            )
            if row == 0:
                run.teach()
            self._runs.append(run)

    def _train(self) -> Tensor:
        """Trains one epoch of every run; the mean loss of every trial."""
        found = [run.advance(self._iterations, progress=False).loss for run in self._runs]
        self._stack.join()
        return torch.tensor(found, dtype=torch.float64).unflatten(0, (-1, self._folds)).mean(-1)

    def _state(self) -> State:
        state = super()._state()
        for row, run in enumerate(self._runs):
            state |= named(f"pair.{row}.", run.state())
        return state

    def _restore(self, state: State) -> None:
        super()._restore(state)
        for row, run in enumerate(self._runs):
            run.restore(part_of(state, f"pair.{row}."))


def _mean(values: Tensor, defined: Tensor) -> Tensor:
    """The mean of the defined values of every model: `[R]` from `[R, ...]`."""
    values = values.reshape(len(values), -1)
    defined = defined.reshape(len(defined), -1)
    return torch.where(defined, values, 0.0).sum(-1) / defined.sum(-1).clamp(min=1)
