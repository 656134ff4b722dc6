"""Train a network for label maps on mean IoU, in place of cross-entropy.

The images are made up: bright squares and smaller discs on a noisy background. Mean IoU counts all
three classes alike, while cross-entropy counts pixels, most of which are background. Both networks
are trained alike, and both get the offsets of `mg.best_offsets`, one number per class, tuned on
validation images: what is left between them is the loss. This is one seed; `python -m benchmarks
run segmentation` has three, on CamVid.
"""

import torch
from torch import Tensor, nn

import metricgrad as mg

SIDE = 32


def scenes(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images `[N, 1, 32, 32]` and label maps `[N, 32, 32]`: 0 background, 1 squares, 2 discs."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    target = torch.zeros(number, SIDE, SIDE, dtype=torch.int64)
    for label, radius in ((1, 6), (2, 3)):
        centre = torch.randint(4, SIDE - 4, (2, number, 1, 1), generator=generator)
        across = (x - centre[0]).abs()
        down = (y - centre[1]).abs()
        square = torch.maximum(across, down) <= radius
        disc = across**2 + down**2 <= radius**2
        target[square if label == 1 else disc] = label
    noise = torch.randn(number, 1, SIDE, SIDE, generator=generator)
    return (target > 0).float().unsqueeze(1) + 0.7 * noise, target


def trained(loss: nn.Module, x: Tensor, target: Tensor) -> nn.Module:
    """A small convolutional network after 120 steps on a loss."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 12), (12, 12), (12, 12)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(12, 3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        batch = torch.randint(0, len(x), (16,))
        optimizer.zero_grad()
        loss(model(x[batch]), target[batch]).backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    """Prints the mean IoU of test images after training on cross-entropy and on mean IoU."""
    generator = torch.Generator().manual_seed(0)
    x, target = scenes(128, generator)
    valid_x, valid = scenes(64, generator)
    test_x, test = scenes(256, generator)
    metric = mg.metric("mean_iou")
    for name, loss in (
        ("cross-entropy", nn.CrossEntropyLoss()),
        ("MetricLoss", mg.MetricLoss(metric)),
    ):
        model = trained(loss, x, target)
        with torch.no_grad():
            offsets = mg.best_offsets(model(valid_x), valid, metric)
            scores = model(test_x)
        plain = metric(scores, test).item()
        tuned = metric(scores + offsets.reshape(-1, 1, 1), test).item()
        print(f"{name:13}  mean IoU {plain:.3f}, with tuned offsets {tuned:.3f}")


if __name__ == "__main__":
    main()
