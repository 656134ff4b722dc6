"""Train a LightningModule on average precision, on one device or on several.

    python examples/lightning_module.py 2     # two processes; without a number, one

Lightning starts the processes and averages their gradients. `across_ranks` joins their scores, so
the loss is the average precision of all of them; with one device it is the loss itself. What
`self.log` shows of it is the metric, so it needs no `sync_dist`.
"""

import sys
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import metricgrad as mg


class Ranker(lightning.LightningModule):
    """A linear model that is trained on average precision."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(10, 1)
        self.loss = mg.across_ranks(mg.MetricLoss("average_precision"))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """1 - average precision of the batches of all processes."""
        x, y = batch
        value = self.loss(self.model(x).squeeze(-1), y)
        self.log("train_loss", value)
        return value

    def configure_optimizers(self) -> Any:
        """Adam, as for any loss."""
        return torch.optim.Adam(self.parameters(), lr=0.03)


def main() -> None:
    """Trains, and prints the average precision of the data."""
    devices = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(1024, 10)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(1024) > 2).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=64 // devices, shuffle=True)
    module = Ranker()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    if trainer.is_global_zero:
        scores = module.model(x).squeeze(-1)
        print(f"average precision {mg.metric('average_precision')(scores, y).item():.4f}")


if __name__ == "__main__":
    main()
