"""Train on several machines that Ray finds, on the F1 of all of them together.

    python examples/ray_train.py                          # on this machine
    RAY_ADDRESS=auto python examples/ray_train.py         # on the cluster that this machine is in

Ray does what torchrun does: it places one worker for each rank, all of them or none, and
tells them where rank 0 is. From there on it is the loop of ddp.py: `across_ranks` joins the scores
of a batch of 64, so two workers train the same model as one. The timeout ends all workers if one of
them is lost. Needs pip install 'metricgrad[ray]'.
"""

import logging
import os
import socket
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import metricgrad as mg


@ray.remote(num_cpus=1)
class Worker:
    """One rank of the training run."""

    def address(self) -> str:
        """Where the other ranks find this one: its machine, and a port that is free there."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def train(self, rank: int, size: int, address: str) -> float:
        """Trains with all other ranks; returns the F1 of the data."""
        torch.set_num_threads(1)
        timeout = timedelta(seconds=60)
        dist.init_process_group("gloo", address, timeout, size, rank)  # on GPUs: "nccl"
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1024, 10, generator=generator)
        y = (x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(1024, generator=generator) > 2).long()
        sampler = DistributedSampler(TensorDataset(x, y), size, rank, seed=0)
        loader = DataLoader(sampler.dataset, batch_size=64 // size, sampler=sampler)

        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(10, 1))
        loss = mg.across_ranks(mg.MetricLoss("f1"))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for epoch in range(5):
            sampler.set_epoch(epoch)
            for features, target in loader:
                optimizer.zero_grad()
                loss(model(features).squeeze(-1), target).backward()  # 1 - F1 of all 64
                optimizer.step()
        value = mg.metric("f1")(model.module(x).squeeze(-1), y).item()
        del model  # first, because it holds the group, and freeing a group that has ended can hang
        dist.destroy_process_group()
        return value


def trained(size: int) -> float:
    """The F1 after a training with so many workers."""
    group = placement_group([{"CPU": 1}] * size)  # half of the workers would wait for ever
    place = PlacementGroupSchedulingStrategy(group)
    workers: list[Any] = [Worker.options(scheduling_strategy=place).remote() for _ in range(size)]
    address = ray.get(workers[0].address.remote())
    values = ray.get([each.train.remote(rank, size, address) for rank, each in enumerate(workers)])
    remove_placement_group(group)
    return values[0]


def main() -> None:
    """Trains with one worker and with two, and prints the F1 of the data."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "local")
    local = {"num_cpus": 2, "include_dashboard": False} if address == "local" else {}
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
    for size in (1, 2):
        print(f"workers: {size}, F1 of the data {trained(size):.4f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
