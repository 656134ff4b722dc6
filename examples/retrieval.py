"""Train embeddings for retrieval on classes that the test part does not have.

Embeddings of scikit-learn's digits 0 to 5 are trained, and digits 6 to 9 are searched: every image
is a query, and the others are ranked by their cosine with it. The digits are moved to random places
in a larger, noisy image, so their pixels alone find little. A contrastive loss pulls images of a
class together and pushes others apart, pair by pair. `mg.UniLoss("map")` trains the order of the
ranking; its slope was chosen on digits 4 and 5, left out of the training for that. Both losses have
the same network, batches and steps. Both find much more than pixels do, and on digits neither is
clearly ahead. This is one seed; `python -m benchmarks run retrieval` has five, on pictures of
clothes.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import metricgrad as mg

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def moved(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Images `[N, 1, 14, 14]` with a digit of 8 x 8 pixels somewhere in each, and noise."""
    images = 0.2 * torch.randn(len(pixels), 1, 14, 14, generator=generator)
    for image, digit in zip(images, pixels.reshape(-1, 8, 8), strict=True):
        top, left = torch.randint(7, (2,), generator=generator).tolist()
        image[0, top : top + 8, left : left + 8] += digit
    return images


def similarities(embeddings: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of all pairs, which of them are relevant, and which of them count, `[B, B]`."""
    unit = F.normalize(embeddings, dim=-1)
    itself = torch.eye(len(classes), dtype=torch.bool)
    return unit @ unit.T, classes[:, None] == classes, ~itself


def contrastive(cosines: Tensor, relevant: Tensor, where: Tensor) -> Tensor:
    """Relevant pairs should have a cosine of 1, all others at most one half."""
    together = (1 - cosines)[relevant & where].square()
    apart = (cosines - 0.5).relu()[~relevant].square()
    return together.mean() + apart.mean()


def trained(loss: Loss, pixels: Tensor, y: Tensor) -> nn.Module:
    """A small convolutional network after 300 steps on a loss, on digits that move each time."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(288, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        batch = torch.randint(0, len(y), (96,), generator=generator)
        embeddings = model(moved(pixels[batch], generator))
        optimizer.zero_grad()
        loss(*similarities(embeddings, y[batch])).backward()
        optimizer.step()
    return model


def main() -> None:
    """Prints how unseen digits are found by pixels, and by embeddings trained on each loss."""
    images, digits = load_digits(return_X_y=True)
    pixels = torch.tensor(images).float() / 16
    y = torch.tensor(digits)
    seen = y < 6
    test = moved(pixels[~seen], torch.Generator().manual_seed(1))
    losses: dict[str, Loss] = {"contrastive": contrastive, "UniLoss": mg.UniLoss("map", slope=10.0)}
    models = {name: trained(loss, pixels[seen], y[seen]) for name, loss in losses.items()}
    for name, model in {"pixels": nn.Flatten(), **models}.items():
        scores, relevant, where = similarities(model(test).detach(), y[~seen])
        found = mg.metric("map")(scores, relevant, where=where).mean().item()
        first = mg.metric("precision_at_k", k=1)(scores, relevant, where=where).mean().item()
        print(f"{name:12} MAP {found:.3f}, first image relevant {first:.3f}")


if __name__ == "__main__":
    main()
