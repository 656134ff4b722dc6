"""Trials that are trained side by side: one loss, several slopes and learning rates, all folds.

The models of a group are stacked into one (`flat.py`) where that is possible, so that five folds
and four rates cost little more than a single model. Every trial keeps its model at the epoch that
`BestEpochs` calls best. All that the next epoch depends on is a tensor, so a checkpoint after every
epoch is enough to continue exactly.

Tensors have a leading dimension of R models: the K folds of the first trial, then of the next.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.progress import Tell
from metricgrad.surrogates import with_memory
from metricgrad.training.candidates import ordinary_candidate
from metricgrad.training.checkpoint import part_of, read_checkpoint, write_checkpoint
from metricgrad.training.data import CHUNK, NO_BATCH, Batch, Loader
from metricgrad.training.split import Split
from metricgrad.training.stack import Stack, modes_kept
from metricgrad.training.trials import BestEpochs, PlannedTrial, Trial, TrialSettings


class TrialGroup:
    """Trains trials whose candidates are `kin`, each from the weights that the model has.

    Attributes:
        stopped: Whether the user pressed Ctrl-C.
    """

    def __init__(
        self,
        model: nn.Module,
        planned: list[PlannedTrial],
        split: Split,
        epochs: int,
        settings: TrialSettings,
    ) -> None:
        self.planned = planned
        self.epochs = epochs
        self.settings = settings
        self.stopped = False
        self._split = split
        self._validation = split.validation
        self._folds = len(split.folds)
        self._epoch = 0

        first = planned[0].candidate
        metric = split.validation.metric
        self._warm_up = epochs // 2 if first.warm_start else 0
        self._best = BestEpochs(epochs, len(planned), self._warm_up, metric.higher_is_better)
        self._kept: dict[str, Tensor] = {}

        models = len(planned) * self._folds
        self._module = copy.deepcopy(model)
        self._modules = [self._module, *(copy.deepcopy(model) for _ in range(models - 1))]
        rates = torch.tensor([each.rate for each in planned]).repeat_interleave(self._folds)
        self._stack = Stack(self._modules, rates.unsqueeze(-1), settings.clip, together=models > 1)
        self._stack.decay = settings.decay
        scales = torch.tensor([each.candidate.scale(metric) for each in planned])
        self._scales = None if (scales == 1).all() else scales.repeat_interleave(self._folds)
        self._ordinary = ordinary_candidate(metric, self._validation.sets).loss(metric, 0)
        loss = first.loss(metric, settings.seed)
        self._losses = [loss]
        if settings.memory:  # every model remembers its own scores
            self._losses = [
                with_memory(copy.deepcopy(loss), settings.memory) for _ in self._modules
            ]

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
            try:
                while not self._is_done(only):
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

    def train_only(self, epochs: int) -> tuple[dict[str, Tensor], Tensor]:
        """The state of one model after its first epochs, and its scores `[K, V, ...]`."""
        with torch.random.fork_rng(devices=[]), modes_kept(self._module):
            while self._epoch < epochs:
                self._train()
                self._epoch += 1
            scores = self._scores()[0]
        self._stack.part()
        return {name: value.clone() for name, value in self._module.state_dict().items()}, scores

    def _is_done(self, only: int | None) -> bool:
        if only is not None:
            return self._epoch >= only
        return self._epoch >= self.epochs or self._best.gave_up(self._epoch, self.settings.patience)

    def _must_match(self) -> dict[str, Any]:
        """What a checkpoint must share with this run; the keys are those of its file."""
        settings = asdict(self.settings)
        must_match = settings.pop("must_match")
        return {
            "entrants": [[str(candidate), rate] for candidate, rate in self.planned],
            "epochs": self.epochs,
            "metric": self._validation.metric.name,
            "batches": self._steps(),
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
            "vector": self._stack.vector.detach().clone(),
            **{f"buffer.{name}": each.clone() for name, each in self._stack.buffers.items()},
        }

    def _train(self) -> Tensor:
        """Trains one epoch; the mean loss of every trial."""
        self._module.train()
        torch.manual_seed(self.settings.seed * 7919 + self._epoch)
        sums = torch.zeros(len(self._modules), dtype=torch.float64)
        steps = 0
        for batch in self._batches():
            scores = self._item_scores(batch).nan_to_num(0.0)
            values = self._values(scores, batch)
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
        done = (self._epoch - start + step / self._steps()) / max(1, end - start)
        return 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0))

    def _batches(self) -> Iterator[Batch]:
        batches = self._split.batches
        if isinstance(batches, Loader):
            return batches.epoch(self._epoch, self.settings.seed, len(self._modules))
        return batches.epoch(self._epoch, len(self.planned))

    def _steps(self) -> int:
        batches = self._split.batches
        return len(batches.batches) if isinstance(batches, Loader) else batches.steps

    def _values(self, scores: Tensor, batch: Batch) -> Tensor:
        """The loss of every model, `[R]`."""
        if self._epoch < self._warm_up:
            values = self._ordinary.per_set(scores, batch.y, batch.where)
            return _mean(values, torch.ones_like(values, dtype=torch.bool))
        if self._scales is not None:
            scores = scores * self._scales.view(-1, *[1] * (scores.dim() - 1))
        if not self.settings.memory:
            return _mean(*self._losses[0].losses(scores, batch.y, batch.where))
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
        data = self._split.data
        if isinstance(data.data, Loader):
            found = []
            targets = []
            for batch in data.data.epoch(0, 0, len(self._modules)):
                found.append(self._item_scores(batch))
                targets.append(batch.y[:1])
            if not torch.equal(torch.cat(targets, 1), self._validation.items.target):
                raise ValueError(
                    "the validation loader gives other items, or another order, each time; "
                    "do not shuffle it"
                )
        else:
            assert data.index is not None
            found = [
                self._item_scores(data.data.take(part.repeat(len(self.planned), 1)))
                for part in data.index.split(CHUNK, -1)
            ]
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
            self._kept["vector"][rows] = self._stack.vector.detach()[rows]
            for name, buffer in self._stack.buffers.items():
                self._kept[f"buffer.{name}"][rows] = buffer[rows]
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
    def _best_state(self, row: int) -> dict[str, Tensor]:
        """A model's best state, by way of the module, which knows what is tied or not saved."""
        sizes = [each.numel() for each in self._module.parameters()]
        parts = self._kept["vector"][row].split(sizes)
        for each, part in zip(self._module.parameters(), parts, strict=True):
            each.copy_(part.view_as(each))
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._kept[f"buffer.{name}"][row])
        return {name: value.clone() for name, value in self._module.state_dict().items()}

    def _state(self) -> dict[str, Tensor]:
        """Everything that the next epoch depends on; the names are those of the checkpoint."""
        state = self._stack.state("crew")
        state |= {f"best.{name}": value for name, value in self._kept.items()}
        state |= self._best.state()
        state["epoch"] = torch.tensor(self._epoch)
        if self.settings.memory:
            for row, loss in enumerate(self._losses):
                state |= {f"loss.{row}.{name}": each for name, each in loss.state_dict().items()}
        return state

    def _restore(self, state: dict[str, Tensor]) -> None:
        self._stack.restore(state, "crew")
        self._kept = {name: state[f"best.{name}"] for name in self._kept}
        self._best.restore(state)
        self._epoch = int(state["epoch"])
        if self.settings.memory:
            for row, loss in enumerate(self._losses):
                loss.load_state_dict(part_of(state, f"loss.{row}."))


def _mean(values: Tensor, defined: Tensor) -> Tensor:
    """The mean of the defined values of every model: `[R]` from `[R, ...]`."""
    values = values.reshape(len(values), -1)
    defined = defined.reshape(len(defined), -1)
    return torch.where(defined, values, 0.0).sum(-1) / defined.sum(-1).clamp(min=1)
