"""Train in several processes on the F1 of all of them.

    torchrun --nproc-per-node 2 examples/ddp.py     # or: python examples/ddp.py

A batch of 64 is cut into one part for each process. `across_ranks` joins their scores, so the loss
is the F1 of 64 items, and any number of processes trains the same model. Everything else is a plain
DDP loop. The timeout ends all processes if one of them is lost.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import metricgrad as mg


def main() -> None:
    """Trains, and prints the loss of some steps and the F1 of the data at the end."""
    size = int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets this
    if size > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # on GPUs: "nccl"
    rank = dist.get_rank() if size > 1 else 0
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 10, generator=generator)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(1024, generator=generator) > 2).long()
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, size, rank, seed=0)
    loader = DataLoader(data, batch_size=64 // size, sampler=sampler)

    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(10, 1)
    if size > 1:
        model = DistributedDataParallel(model)
    loss = mg.across_ranks(mg.MetricLoss("f1"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        value = torch.zeros(())
        for features, target in loader:
            optimizer.zero_grad()
            value = loss(model(features).squeeze(-1), target)  # 1 - F1 of all 64
            value.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: 1 - F1 of the last batch {value.item():.4f}")
    if rank == 0:
        print(f"F1 of the data {mg.metric('f1')(model(x).squeeze(-1), y).item():.4f}")
    if size > 1:
        del model  # first, because it holds the group, and freeing a group that has ended can hang
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
