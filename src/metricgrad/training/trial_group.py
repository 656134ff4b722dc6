"""A group of trials: one loss, several slopes and learning rates, all folds; trained together, looked at after every epoch.

The models of a group are stacked into one (`flat.py`) where they can be, so that five folds and four
rates cost little more than one. After every epoch the true metric is taken on validation data, at
its best threshold; each entrant is remembered at the epoch where the mean of the last three was
best. Whatever the group depends on is a tensor, so that a file after every epoch is enough to go on
exactly.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.surrogates import with_memory
from metricgrad.training.algorithm import modes_kept
from metricgrad.training.candidates import ordinary_candidate
from metricgrad.training.checkpoint import read_checkpoint, write_checkpoint
from metricgrad.training.data import Batch, Loader
from metricgrad.training.flat import Stack
from metricgrad.training.split import Split
from metricgrad.training.trials import PlannedTrial, Trial, TrialSettings
from metricgrad.training.validation import binary_scores

Tell = Callable[..., None]
_CHUNK = 16384
_RECENT = 3  # epochs whose mean decides which is best


class TrialGroup:
    """Entrants of one loss.

    Args:
        model: where all of them start; it is not changed.
        planned: the entrants: candidates that are kin, each with a learning rate.
        split: data and metric.
        epochs: of a training.
        settings: what all groups share.
    """

    def __init__(
        self,
        model: nn.Module,
        planned: list[PlannedTrial],
        split: Split,
        epochs: int,
        settings: TrialSettings,
    ) -> None:
        self.planned, self.epochs, self.settings = planned, epochs, settings
        self._feed, self._view, self._validation = split.feed, split.view, split.validation
        self._folds = len(self._validation.items.live)
        self._module = copy.deepcopy(model)
        number, first = len(planned) * self._folds, planned[0][0]
        each = (
            torch.tensor([rate for _, rate in planned]).repeat_interleave(self._folds).unsqueeze(-1)
        )
        scales = torch.tensor(
            [candidate.scale(self._validation.metric) for candidate, _ in planned]
        )
        self._scales = None if (scales == 1).all() else scales.repeat_interleave(self._folds)
        self._modules = [self._module, *(copy.deepcopy(model) for _ in range(number - 1))]
        self._crew = Stack(self._modules, each, settings.clip, together=number > 1)
        self._crew.decay = settings.decay
        loss = first.loss(self._validation.metric, settings.seed)
        self._losses = (
            [with_memory(copy.deepcopy(loss), settings.memory) for _ in self._modules]
            if settings.memory
            else [loss]
        )
        self._warm = epochs // 2 if first.start == "warm" else 0
        self._epoch, self.stopped = 0, False
        self._curve = torch.full((epochs, len(planned), 2), torch.nan, dtype=torch.float64)
        self._best: dict[str, Tensor] = {}

    def run(
        self, path: Path | None = None, tell: Tell = lambda *_: None, only: int | None = None
    ) -> list[Trial]:
        """Trains to the end, or from where a file says it stopped.

        Args:
            path: of the checkpoint; None writes none.
            tell: is told after every epoch.
            only: looks at validation data after this epoch alone, and stops there; None looks after
                every epoch.

        Returns:
            The entrants; as they are so far if Ctrl-C is pressed, and `stopped` is True then.
        """
        with torch.random.fork_rng(devices=[]), modes_kept(self._module):
            self._begin()
            known = self._known()
            if path is not None and path.exists():
                self._restore(read_checkpoint(path, self._state(), known, varying="loss."))
            try:
                while self._epoch < (only or self.epochs) and (
                    only is not None or not self._gave_up()
                ):
                    mean = self._train()
                    self._epoch += 1
                    if only in (None, self._epoch):
                        self._look(mean)
                    if path is not None:
                        write_checkpoint(path, self._state(), known)
                    tell(1, self._told())
            except KeyboardInterrupt:
                self.stopped = True
            tell(self.epochs - self._epoch, "")
        return [self._entry(number) for number in range(len(self.planned))]

    def _known(self) -> dict[str, Any]:
        """What a checkpoint must agree in."""
        return {
            "entrants": [[str(candidate), rate] for candidate, rate in self.planned],
            "epochs": self.epochs,
            "metric": self._validation.metric.name,
            "batches": self._steps(),
            "validation": self._validation.items.live.sum(-1).tolist(),
            **{name: value for name, value in asdict(self.settings).items() if name != "known"},
            **self.settings.known,
        }

    def train_only(self, epochs: int) -> tuple[dict[str, Tensor], Tensor]:
        """The first epochs of the training of one model, without a look at validation data.

        Args:
            epochs: how many; the learning rate falls as it would on the way to the end.

        Returns:
            Parameters and buffers by name, and scores `[K, V, ...]` of the validation data.
        """
        with torch.random.fork_rng(devices=[]), modes_kept(self._module):
            while self._epoch < epochs:
                self._train()
                self._epoch += 1
            scores = self._scores()[0]
        self._crew.part()
        return {name: value.clone() for name, value in self._module.state_dict().items()}, scores

    def _begin(self) -> None:
        """Finds out whether the models can run together, and what their scores look like."""
        try:
            scores = self._scores()
        except (RuntimeError, ValueError):
            if not self._crew.together:
                raise
            self._crew.together = False
            scores = self._scores()
        threshold = self._validation.look(scores[0]).threshold
        entrants = len(self.planned)
        self._best = {
            "value": torch.full((entrants,), torch.nan, dtype=torch.float64),
            "recent": torch.full((entrants,), torch.nan, dtype=torch.float64),
            "epoch": torch.zeros(entrants, dtype=torch.int64),
            "threshold": torch.full(
                (entrants, *(threshold.shape if threshold is not None else ())), torch.nan
            ),
            "scores": torch.zeros_like(scores),
            "vector": self._crew.vector.detach().clone(),
            **{f"buffer.{name}": value.clone() for name, value in self._crew.buffers.items()},
        }

    def _train(self) -> Tensor:
        """One epoch; the mean loss of every entrant."""
        self._module.train()
        torch.manual_seed(self.settings.seed * 7919 + self._epoch)
        warm = self._epoch < self._warm
        usual = (
            ordinary_candidate(self._validation.metric, self._validation.sets)
            .loss(self._validation.metric, 0)
            .per_set
            if warm
            else None
        )
        sums, steps = torch.zeros(len(self._crew.vector), dtype=torch.float64), 0
        first, last = (0, self._warm) if warm else (self._warm, self.epochs)
        for number, batch in enumerate(self._batches()):
            done = (self._epoch - first + number / self._steps()) / max(1, last - first)
            scores = self._shaped(self._crew(batch.x), batch.y).nan_to_num(0.0)
            values = self._values(usual, scores, batch)
            self._crew.descend(values, 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0)))
            sums += values.detach()
            steps += 1
        if not steps:
            raise ValueError("the loader gave no batch; pass one with items, or without drop_last")
        return (sums / max(1, steps)).unflatten(0, (-1, self._folds)).mean(-1)

    def _batches(self) -> Any:
        seed, number = self.settings.seed, len(self._crew.vector)
        if isinstance(self._feed, Loader):
            return self._feed.epoch(self._epoch, seed, number)
        return self._feed.epoch(self._epoch, len(self.planned))

    def _steps(self) -> int:
        return len(self._feed.batches) if isinstance(self._feed, Loader) else self._feed.steps

    def _values(self, usual: Callable[..., Tensor] | None, scores: Tensor, batch: Batch) -> Tensor:
        """The loss of every model, `[R]`."""
        if usual is not None:
            values = usual(scores, batch.y, batch.where)
            return _mean(values, torch.ones_like(values, dtype=torch.bool))
        if self._scales is not None:
            scores = scores * self._scales.view(-1, *[1] * (scores.dim() - 1))
        if not self.settings.memory:
            return _mean(*self._losses[0].losses(scores, batch.y, batch.where))
        each = [
            loss.losses(scores[row], batch.y[row], None) for row, loss in enumerate(self._losses)
        ]
        return torch.stack([torch.where(defined, value, 0.0) for value, defined in each])

    @torch.no_grad()
    def _scores(self) -> Tensor:
        """Scores of the validation data, `[E, K, V, ...]`."""
        self._module.eval()
        number, found = len(self._crew.vector), []
        if isinstance(self._view.data, Loader):
            targets = []
            for batch in self._view.data.epoch(0, 0, number):
                found.append(self._shaped(self._crew(batch.x), batch.y))
                targets.append(batch.y[:1])
            if not torch.equal(torch.cat(targets, 1), self._validation.items.target):
                raise ValueError(
                    "the validation loader gives other items, or another order, each time; do not shuffle it"
                )
        else:
            assert self._view.index is not None
            for part in self._view.index.split(_CHUNK, -1):
                batch = self._view.data.take(part.repeat(len(self.planned), 1))
                found.append(self._shaped(self._crew(batch.x), batch.y))
        return torch.cat(found, 1).unflatten(0, (len(self.planned), self._folds))

    def _shaped(self, scores: Tensor, target: Tensor) -> Tensor:
        """Binary scores without a dimension of one; those of a two-class model as s1 - s0."""
        return (
            binary_scores(self._validation.metric, scores)
            if scores.dim() == target.dim() + 1
            else scores
        )

    def _look(self, mean: Tensor) -> None:
        """The metric of every entrant on validation data; remembers those that are better than ever."""
        scores = self._scores()
        for number in range(len(self.planned)):
            if not scores[number].isfinite().all():
                continue  # diverged: what it was before still counts
            value, threshold = self._validation.look(scores[number])
            self._curve[self._epoch - 1, number] = torch.tensor(
                [mean[number], value], dtype=torch.float64
            )
            best, recent = self._best["recent"][number].item(), self._recent(number)
            if self._epoch > self._warm and self._validation.better(
                recent, None if math.isnan(best) else best
            ):
                rows = slice(number * self._folds, (number + 1) * self._folds)
                self._best["value"][number], self._best["epoch"][number] = value, self._epoch
                self._best["recent"][number] = recent
                self._best["scores"][number] = scores[number]
                self._best["vector"][rows] = self._crew.vector.detach()[rows]
                for name, buffer in self._crew.buffers.items():
                    self._best[f"buffer.{name}"][rows] = buffer[rows]
                if threshold is not None:
                    self._best["threshold"][number] = threshold

    def _recent(self, number: int) -> float:
        """The mean metric of the last epochs: one epoch that stands out is luck, and its model a fragile one."""
        known = self._curve[max(self._warm, self._epoch - _RECENT) : self._epoch, number, 1]
        return float(known.nanmean())

    def _gave_up(self) -> bool:
        """Whether no entrant has become better for as many epochs as patience allows."""
        patience, latest = self.settings.patience, int(self._best["epoch"].max())
        return (
            patience is not None
            and self._epoch > self._warm
            and self._epoch - max(latest, self._warm) >= patience
        )

    def _told(self) -> str:
        known = self._best["value"][self._best["value"].isfinite()]
        if not len(known):
            return ""
        best = known.max() if self._validation.metric.higher_is_better else known.min()
        return f"{self.planned[0][0].method}: {self._validation.metric.name} {best:.4f}"

    def _entry(self, number: int) -> Trial:
        value, rows = self._best["value"][number].item(), number * self._folds
        threshold = self._best["threshold"][number]
        return Trial(
            *self.planned[number],
            self.epochs,
            int(self._best["epoch"][number]),
            None if math.isnan(value) else value,
            None if threshold.isnan().any() else threshold,
            self._best["scores"][number],
            self._best_state(rows) if self._folds == 1 else {},
            self._curve[:, number],
        )

    @torch.no_grad()
    def _best_state(self, row: int) -> dict[str, Tensor]:
        """A model at its best, for `load_state_dict`: by way of the module, which knows what is tied or left out."""
        parts = self._best["vector"][row].split(
            [each.numel() for each in self._module.parameters()]
        )
        for each, part in zip(self._module.parameters(), parts, strict=True):
            each.copy_(part.view_as(each))
        for name, buffer in self._module.named_buffers():
            buffer.copy_(self._best[f"buffer.{name}"][row])
        return {name: value.clone() for name, value in self._module.state_dict().items()}

    def _state(self) -> dict[str, Tensor]:
        """Everything that the next epoch depends on."""
        memory = {
            f"loss.{row}.{name}": value
            for row, loss in enumerate(self._losses if self.settings.memory else [])
            for name, value in loss.state_dict().items()
        }
        return {
            **{
                f"crew.{name}": value.detach().clone() for name, value in self._crew.state().items()
            },
            **{f"best.{name}": value for name, value in self._best.items()},
            "curve": self._curve,
            "epoch": torch.tensor(self._epoch),
            **memory,
        }

    def _restore(self, state: dict[str, Tensor]) -> None:
        self._crew.restore(
            {name[5:]: value for name, value in state.items() if name.startswith("crew.")}
        )
        self._best = {name[5:]: value for name, value in state.items() if name.startswith("best.")}
        self._curve, self._epoch = state["curve"], int(state["epoch"])
        for row, loss in enumerate(self._losses if self.settings.memory else []):
            start = f"loss.{row}."
            loss.load_state_dict(
                {
                    name[len(start) :]: value
                    for name, value in state.items()
                    if name.startswith(start)
                }
            )


def _mean(values: Tensor, defined: Tensor) -> Tensor:
    """Values of sets `[R, ...]` as one of each model, `[R]`: the mean of those that are defined."""
    values, defined = (
        values.flatten(1) if values.dim() > 1 else values.unsqueeze(-1),
        defined.reshape(len(defined), -1),
    )
    return torch.where(defined, values, 0.0).sum(-1) / defined.sum(-1).clamp(min=1)
