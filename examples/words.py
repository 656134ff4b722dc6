"""Fine-tune a network that reads words on whole words instead of letters.

The words are made up: four letters, each a picture of 5 x 4 pixels, in noise. A network that reads
all places at once is trained on cross-entropy, and then goes on with cross-entropy, which counts
letters, or with `mg.MetricLoss`, for equally many steps. This is one seed; `python -m benchmarks
run words` has three, on photographed words.
"""

import copy

import torch
from torch import Tensor, nn

import metricgrad as mg

LETTERS = 10
END = LETTERS  # the sign after a word
PLACES = 6


def words(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures `[N, 120]` of words of 2 to 5 letters, and their letters `[N, 6]`, -1 at the end."""
    glyphs = torch.randn(LETTERS + 1, 20, generator=torch.Generator().manual_seed(1))
    glyphs[END] = 0.0
    letters = torch.randint(0, LETTERS, (number, PLACES), generator=generator)
    length = torch.randint(2, PLACES, (number, 1), generator=generator)
    place = torch.arange(PLACES)
    letters = letters.where(place < length, END)
    noise = torch.randn(number, PLACES, 20, generator=generator)
    target = letters.where(place <= length, -1)
    return (glyphs[letters] + 1.2 * noise).flatten(1), target


class Reader(nn.Module):
    """Scores `[N, 6, 11]` of letters and the end, for all places at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PLACES * 20, 24), nn.ReLU(), nn.Linear(24, PLACES * (LETTERS + 1))
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """The scores of all places."""
        return self.layers(pictures).unflatten(-1, (PLACES, LETTERS + 1))


class CrossEntropy(nn.Module):
    """Cross-entropy of all places that have a letter or the end."""

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """The mean over places."""
        return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=-1)


def train(model: nn.Module, loss: nn.Module, x: Tensor, target: Tensor) -> nn.Module:
    """The model after 150 steps on a loss."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(150):
        batch = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        loss(model(x[batch]), target[batch]).backward()
        optimizer.step()
    return model


def main() -> None:
    """Prints the correct words and the total edit distance of 500 words, before and after."""
    generator = torch.Generator().manual_seed(0)
    x, target = words(1000, generator)
    test_x, test = words(500, generator)
    torch.manual_seed(0)
    exact = mg.metric("exact_match", end=END)
    distance = mg.metric("edit_distance", end=END)

    def show(name: str, model: nn.Module) -> None:
        scores = model(test_x).detach()
        values = (exact(scores, test).item(), distance(scores, test).item())
        print(f"{name:30}  correct words {values[0]:.3f}, edit distance {values[1]:.0f}")

    start = train(Reader(), CrossEntropy(), x, target)
    show("before", start)
    for name, loss in (
        ("cross-entropy", CrossEntropy()),
        ("MetricLoss of exact match", mg.MetricLoss(exact)),
        ("MetricLoss of edit distance", mg.MetricLoss(distance)),
    ):
        show(name, train(copy.deepcopy(start), loss, x, target))


if __name__ == "__main__":
    main()
