"""Train on F1 with Hugging Face Accelerate, in one process or in several.

    torchrun --nproc-per-node 2 examples/accelerate_loop.py     # or: python; leave out cpu on GPUs

`accelerator.prepare` gives each process its own batches and averages gradients. `across_ranks`
joins their scores, so the set is the batches of all. It may also be all of the data: `in_chunks`
gives its gradient with the memory of one chunk, here in the last step.
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import metricgrad as mg


def main() -> None:
    """Trains, and prints the F1 of the data."""
    accelerator = Accelerator(cpu=True)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 10, generator=generator)
    y = (x[:, 0] + x[:, 1] * x[:, 2] + torch.randn(1024, generator=generator) > 2).long()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 1), torch.nn.Flatten(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    size = 64 // accelerator.num_processes
    loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loss = mg.across_ranks(mg.MetricLoss("f1"))
    for _ in range(5):
        for features, target in loader:
            optimizer.zero_grad()
            accelerator.backward(loss(model(features), target))
            optimizer.step()

    # One more step on all of the data, a part in each process.
    step = mg.in_chunks(model, loss, chunk=128)
    own = slice(accelerator.process_index, None, accelerator.num_processes)
    optimizer.zero_grad()
    accelerator.backward(step(x[own], y[own]))
    optimizer.step()
    if accelerator.is_main_process:
        with torch.no_grad():
            scores = accelerator.unwrap_model(model)(x)
        print(f"F1 of the data {mg.metric('f1')(scores, y).item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
