"""Train a network that finds answers in a text on how many of its answers are exact.

The texts are made up: the answer is a run of one word, whose name is the question, and two fifths
of the training answers end just anywhere after it. Cross-entropy wants these ends, too; the metric
leaves out what is hopeless. The network scores every place as the start and as the end. To the
losses, an answer is two tokens, its first and its last place, chosen among all places; `detokenize`
turns them into the places between, which F1 compares. Values are means over three draws of the
texts; `python -m benchmarks run answers` has SQuAD.
"""

import torch
from torch import Tensor, nn

import metricgrad as mg

LENGTH = 24
WORDS = 8


def texts(number: int, generator: torch.Generator, *, careless: bool) -> tuple[Tensor, Tensor]:
    """Which words are the question's, `[N, 1, 24]`, and both ends of the answers, `[N, 2]`."""
    start = torch.randint(2, LENGTH - 8, (number, 1), generator=generator)
    end = start + torch.randint(1, 6, (number, 1), generator=generator)
    place = torch.arange(LENGTH)
    inside = (place >= start) & (place <= end)
    noise = torch.rand(number, LENGTH, generator=generator) < 1 / WORDS
    if careless:
        anywhere = torch.randint(0, LENGTH, (number, 1), generator=generator)
        wrong = torch.rand(number, 1, generator=generator) < 0.4
        end = torch.where(wrong, torch.maximum(start, anywhere), end)
    return (inside | noise).float().unsqueeze(1), torch.cat([start, end], -1)


def places_between(ends: list[int]) -> list[int]:
    """The places of an answer from its first and its last one."""
    return list(range(ends[0], ends[1] + 1))


def trained(loss: nn.Module, x: Tensor, ends: Tensor) -> nn.Module:
    """A small convolutional network after 150 steps on a loss."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(16, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(16, 2, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        batch = torch.randint(0, len(x), (32,))
        optimizer.zero_grad()
        loss(model(x[batch]), ends[batch]).backward()
        optimizer.step()
    return model.eval()


class CrossEntropy(nn.Module):
    """Cross-entropy of the start and the end among the places: `[N, 2, places]`."""

    def forward(self, scores: Tensor, ends: Tensor) -> Tensor:
        """The mean over both ends of all answers."""
        return nn.functional.cross_entropy(scores.flatten(0, 1), ends.flatten())


def main() -> None:
    """Prints F1 and exact match after training on cross-entropy and on exact match."""
    f1 = mg.metric("span_f1", detokenize=places_between)
    exact = mg.metric("exact_match")
    for name, loss in (
        ("cross-entropy", CrossEntropy),
        ("MetricLoss", lambda: mg.MetricLoss(exact, weight=0.85)),
    ):
        values = torch.zeros(2)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            x, ends = texts(256, generator, careless=True)
            test_x, test_ends = texts(512, generator, careless=False)
            scores = trained(loss(), x, ends)(test_x).detach()
            values += torch.tensor([metric(scores, test_ends).item() for metric in (f1, exact)]) / 3
        print(f"{name:13}  F1 {values[0]:.3f}, exact match {values[1]:.3f}")


if __name__ == "__main__":
    main()
