"""Train heatmaps on the share of correct keypoints, in place of squared error.

A network gets an image with one bright spot among noise and dimmer spots, and says where the bright
one is: by the highest pixel of its heatmap, which has to lie within two pixels. Squared error needs
a target map that somebody designs, here a Gaussian. `mg.UniLoss("pck")` needs only the radius; with
`soft_rivals=True` every pixel takes part, not just the best one within the radius and outside. This
is one seed; `python -m benchmarks run poses_head` has three, on photographs of athletes.
"""

import torch
from torch import Tensor, nn

import metricgrad as mg

SIDE = 24


def pictures(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images `[N, 1, 24, 24]` and the bright spot of each, `[N, 1, 2]`, as x and y."""
    spots = torch.randint(2, SIDE - 2, (number, 4, 2), generator=generator).float()
    height = torch.tensor([1.6, 0.8, 0.8, 0.8])
    maps = mg.baselines.HeatmapMSE.target_maps(spots, (SIDE, SIDE), sigma=1.5)
    noise = torch.randn(number, SIDE, SIDE, generator=generator)
    images = (maps * height[:, None, None]).sum(1) + 0.4 * noise
    return images.unsqueeze(1), spots[:, :1]


def trained(loss: nn.Module, x: Tensor, joints: Tensor) -> nn.Module:
    """A small convolutional network after 60 steps on a loss."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 8), (8, 8)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(8, 1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        batch = torch.randint(0, len(x), (16,))
        optimizer.zero_grad()
        loss(model(x[batch]), joints[batch]).backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    """Prints the share of test images whose spot is found after training on each loss."""
    generator = torch.Generator().manual_seed(0)
    x, joints = pictures(512, generator)
    test_x, test = pictures(512, generator)
    metric = mg.metric("pck", radius=2.0)
    losses = {
        "squared error": mg.baselines.HeatmapMSE(sigma=1.5),
        "UniLoss": mg.UniLoss(metric, soft_rivals=True),
        "MetricLoss": mg.MetricLoss(metric),
    }
    for name, loss in losses.items():
        model = trained(loss, x, joints)
        with torch.no_grad():
            found = metric(model(test_x), test).item()
        print(f"{name:13}  finds {found:.1%} of the spots")


if __name__ == "__main__":
    main()
