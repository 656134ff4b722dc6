"""Trials that are trained side by side: one loss, several slopes and learning rates, all folds.

The models of a group are stacked into one (`stack.py`) where that is possible, so that five folds
and four rates cost little more than a single model. Every trial keeps its model at the epoch that
`BestEpochs` calls best, unless it has several folds, as their models are not needed later. All that
the next epoch depends on is a tensor, so a checkpoint after every epoch is enough to continue
exactly. Models that do not fit into memory side by side train in turns (`group_kinds.py`).

Tensors have a leading dimension of R models: the K folds of the first trial, then of the next.
"""

import copy
import math
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from metricgrad.processes import alone, clock, copy_from_first, from_first, is_first, passed
from metricgrad.progress import Tell
from metricgrad.surrogates import MetricLoss, with_memory
from metricgrad.surrogates.calls import bound, losses_by_size, mean_of_defined
from metricgrad.training.candidates import ordinary_candidate
from metricgrad.training.checkpoint import State, found_checkpoint, named, part_of, write_checkpoint
from metricgrad.training.data import NO_BATCH, Batch, stream_seed
from metricgrad.training.optimizers import Separate, adam
from metricgrad.training.shards import scores_of_all
from metricgrad.training.split import Split
from metricgrad.training.stack import Stack, half_cosine, modes_kept, module_state
from metricgrad.training.trials import BestEpochs, PlannedTrial, Trial, TrialSettings


@dataclass(eq=False)
class TrialGroup:
    """Trains trials whose candidates are `kin`, each from the weights that the model has."""

    model: nn.Module
    planned: list[PlannedTrial]
    split: Split
    epochs: int
    settings: TrialSettings
    stopped: bool = field(default=False, init=False)  # by Ctrl-C
    until: float = field(default=math.inf, init=False)  # when to end, by `clock`
    # What has other shapes later in a run: memories that fill, and the state of optimizers.
    _varying = ("loss.", "crew.states", "crew.state.")
    _apart = False  # whether every model needs a module of its own, whatever the optimizer

    def __post_init__(self) -> None:
        self._epoch = 0
        self._done = 1.0  # the share of the last epoch that there was time for
        self._folds = len(self.split.folds)
        self._validation = self.split.validation
        warm = self.planned[0].candidate.warm_start
        self._warm_up = self.epochs // 2 if warm else 0
        higher = self._validation.metric.higher_is_better
        self._best = BestEpochs(self.epochs, len(self.planned), self._warm_up, higher)
        self._kept: State = {}
        self._build()

    def _build(self) -> None:
        """Makes the models, their optimizer and their losses."""
        metric = self._validation.metric
        first = self.planned[0].candidate
        models = len(self.planned) * self._folds
        own = self.settings.optimizer is not None or self.settings.schedule is not None
        if self._apart or own:
            self._modules = [copy.deepcopy(self.model) for _ in range(models)]
        else:  # the weights of every model are in the stack, so the module's own are not copied
            weights = {id(each): each for each in self.model.parameters()}
            self._modules = [copy.deepcopy(self.model, weights)] * models
        self._module = self._modules[0]
        self._device = next(self._module.parameters()).device
        self._stack = self._stacked()
        self._stack.shared = True
        scales = torch.tensor([each.candidate.scale(metric) for each in self.planned])
        scaled = bool((scales != 1).any())
        self._scales = scales.repeat_interleave(self._folds).to(self._device) if scaled else None
        usual = ordinary_candidate(metric, self._validation.sets)
        self._ordinary = usual.loss(metric, 0).to(self._device)
        self._losses = [first.loss(metric, self.settings.seed).to(self._device)]
        if self.settings.memory:  # every model remembers its own scores
            size = self.settings.memory
            copies = [copy.deepcopy(self._losses[0]) for _ in self._modules]
            self._losses = [with_memory(loss, size) for loss in copies]
        elif isinstance(self._losses[0], MetricLoss):
            self._losses[0].models = len(self._modules)

    def _stacked(self) -> Stack | Separate:
        """All models as one, or each with the optimizer that the user's factory makes for it."""
        settings = self.settings
        rates = [each.rate for each in self.planned for _ in range(self._folds)]
        if settings.optimizer is None and settings.schedule is None:
            column = torch.tensor(rates, device=self._device).unsqueeze(-1)
            stack = Stack(self._modules, column, settings.clip, together=len(rates) > 1)
            stack.decay = settings.decay
            return stack
        optimizer = settings.optimizer or partial(adam, decay=settings.decay)
        return Separate(self._modules, rates, settings.clip, optimizer, settings.schedule)

    def run(
        self, path: Path | None = None, tell: Tell = lambda *_: None, only: int | None = None
    ) -> list[Trial]:
        """Trains to the end, or to the epoch `only`, which then is the only one to be validated.

        If there is a checkpoint at `path`, training continues from it. If Ctrl-C is pressed, the
        trials are as good as they were by then. The same holds when `until` has passed, but at
        least one step is made. Several processes cannot stop one by one: Ctrl-C ends them.
        """
        with self._random_numbers_kept(), modes_kept(self._module):
            self._begin()
            must_match = self._must_match()
            if path is not None:
                stored = found_checkpoint(path, self._state, must_match, self._varying)
                if stored is not None:
                    self._restore(stored)
            last = self.epochs if only is None else only
            patience = self.settings.patience if only is None else None
            try:
                while self._goes_on(last) and not self._best.gave_up(self._epoch, patience):
                    losses = self._train()
                    self._epoch += 1
                    whole = self._done == 1
                    if only is None or (only == self._epoch and whole):
                        self._validate(losses)
                    if path is not None and whole and is_first():
                        write_checkpoint(path, self._state(), must_match)
                    tell(1, self._note())
            except KeyboardInterrupt:
                if not alone():
                    raise
                self.stopped = True
            tell(self.epochs - self._epoch, "")
        return [self._trial(number) for number in range(len(self.planned))]

    def train_only(self, epochs: int) -> tuple[State, Tensor]:
        """The state of one model after its first epochs, and its scores `[K, V, ...]`."""
        with self._random_numbers_kept(), modes_kept(self._module):
            while self._goes_on(epochs):
                self._train()
                self._epoch += 1
            scores = self._scores()[0]
        return module_state(self.model, self._stack.weights(), 0), scores

    def epoch_seconds(self, until: float) -> float:
        """About how long an epoch takes; one that is not over by then is left, and scaled up."""
        with self._random_numbers_kept(), modes_kept(self._module):
            self._begin()
            self.until = -math.inf
            losses = self._train()  # one step, as the first ones take longer
            start = clock()
            self._validate(losses)
            validated = clock()
            self.until = until
            self._train()
            return validated - start + (clock() - validated) / self._done

    def _goes_on(self, epochs: int) -> bool:
        """Whether there are epochs left, and time for them unless nothing has been trained yet."""
        return self._epoch < epochs and (not self._epoch or not passed(self.until))

    def _random_numbers_kept(self) -> AbstractContextManager[None]:
        """Leaves the user's random numbers alone, on the device of the models too."""
        return torch.random.fork_rng([self._device] if self._device.type == "cuda" else [])

    def _must_match(self) -> dict[str, Any]:
        """What a checkpoint must share with this run; the keys are those of its file."""
        settings = asdict(replace(self.settings, optimizer=None, schedule=None))
        must_match = settings.pop("must_match")
        if isinstance(self._stack, Separate):
            settings["optimizer"] = self._stack.description()
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
            **{name: each.cpu().clone() for name, each in self._weights().items()},
        }
        self._start_schedule()

    def _start_schedule(self) -> None:
        """Starts a schedule of the user's own, for the epochs of the phase that the run is in."""
        if isinstance(self._stack, Separate):
            start, end = self._phase()
            self._stack.begin(max(1, end - start) * self.split.batches.steps)

    def _train(self) -> Tensor:
        """Trains one epoch; the mean loss of every trial."""
        for module in self._modules:
            module.train()
        if self._epoch in (0, self._warm_up):
            self._start_schedule()
        torch.manual_seed(self.settings.seed * 7919 + self._epoch)
        sums = torch.zeros(len(self._modules), dtype=torch.float64)
        steps = 0
        self._done = 1.0
        for batch in self.split.batches.epoch(self._epoch, len(self.planned)):
            seed = stream_seed(self.settings.seed, steps, self._epoch)
            scores, batch = scores_of_all(self._item_scores, batch.to(self._device), seed)
            values = self._values(scores.nan_to_num(0.0), batch)
            self._stack.descend(values, self._share(steps))
            sums += values.detach().cpu()
            steps += 1
            if passed(self.until):
                self._done = min(1.0, steps / self.split.batches.steps)
                break
        if not steps:
            raise ValueError(NO_BATCH)
        copy_from_first(self._stack.tensors())  # running statistics are those of a part
        return (sums / steps).unflatten(0, (-1, self._folds)).mean(-1)

    def _phase(self) -> tuple[int, int]:
        """The epochs, from and to, that the learning rate falls in: anew after a warm start."""
        warm = self._epoch < self._warm_up
        return (0, self._warm_up) if warm else (self._warm_up, self.epochs)

    def _share(self, step: int) -> float:
        """The share of the learning rate at a step: half a cosine."""
        start, end = self._phase()
        done = self._epoch - start + step / self.split.batches.steps
        return half_cosine(done / max(1, end - start))

    def _values(self, scores: Tensor, batch: Batch) -> Tensor:
        """The loss of every model, `[R]`."""
        if self._epoch < self._warm_up:
            with bound(self._ordinary, self._ordinary.taken(batch.rows)):
                values, _ = self._ordinary.losses(scores, batch.y, batch.where)
            return mean_of_defined(values, torch.ones_like(values, dtype=torch.bool))
        if self._scales is not None:
            scores = scores * self._scales.view(-1, *[1] * (scores.dim() - 1))
        if not self.settings.memory:
            (loss,) = self._losses
            if batch.where is not None:
                return mean_of_defined(*losses_by_size(loss, scores, batch.y, batch.where))
            with bound(loss, batch.rows):
                return mean_of_defined(*loss.losses(scores, batch.y, None))
        losses = enumerate(self._losses)
        each = [loss.losses(scores[row], batch.y[row], None) for row, loss in losses]
        return torch.stack([torch.where(defined, value, 0.0) for value, defined in each])

    def _item_scores(self, batch: Batch) -> Tensor:
        return self._validation.metric.item_scores(self._stack(batch.x, batch.where), batch.y)

    @torch.no_grad()
    def _scores(self) -> Tensor:
        """Scores of the validation data, `[trials, K, V, ...]`."""
        for module in self._modules:
            module.eval()
        found = []
        targets = []
        for batch in self.split.data.batches(len(self.planned)):
            scores, batch = scores_of_all(self._item_scores, batch.to(self._device))
            found.append(scores.cpu())
            targets.append(batch.y[:1].cpu())
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
        for number, measured in enumerate(from_first(lambda: self._validation.measure_all(scores))):
            if measured is None:
                continue  # it diverged, but its earlier epochs still count
            value, threshold = measured
            if not self._best.record(number, self._epoch, losses[number].item(), value):
                continue
            self._kept["scores"][number] = scores[number]
            for name, each in self._weights().items():
                self._kept[name][number] = each[number]
            if threshold is not None:
                self._kept["threshold"][number] = threshold

    def _weights(self) -> State:
        """The weights to keep of every trial at its best: those of its only model."""
        return self._stack.weights() if self._folds == 1 else {}

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
            state=module_state(self.model, self._kept, number) if self._folds == 1 else {},
            curve=self._best.curve[:, number],
            folds=self._folds,
        )

    def _state(self) -> State:
        """Everything that the next epoch depends on; the names are those of the checkpoint."""
        state = self._models_state() | named("best.", self._kept) | self._best.state()
        state["epoch"] = torch.tensor(self._epoch)
        return state

    def _models_state(self) -> State:
        """What the next epoch depends on of models, optimizers and losses."""
        state = self._stack.state("crew")
        if self._losses[0].remembers:
            for row, loss in enumerate(self._losses):
                state |= named(f"loss.{row}.", loss.state_dict())
        return state

    def _restore(self, state: State) -> None:
        self._epoch = int(state["epoch"])
        self._restore_models(state)
        self._kept = {name: state[f"best.{name}"] for name in self._kept}
        self._best.restore(state)

    def _restore_models(self, state: State) -> None:
        self._start_schedule()
        self._stack.restore(state, "crew")
        if self._losses[0].remembers:
            for row, loss in enumerate(self._losses):
                loss.load_state_dict(part_of(state, f"loss.{row}."))
