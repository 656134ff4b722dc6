"""Learn a loss for BLEU from a model's own outputs, and fine-tune the model with it.

The sentences are made up: a word of one language has two translations, and the whole sentence takes
the one or the other, so cross-entropy mixes them place by place. `mg.ReLoss` learns to rank sets of
translations as BLEU does, from what the model gave while it was trained (p = 0: nothing is made
up). It then stands beside cross-entropy. This is one seed; `python -m benchmarks run translation`
has three, on Multi30k.
"""

import copy

import torch
from torch import Tensor, nn

import metricgrad as mg

WORDS = 8
PLACES = 8
SET = 8


def sentences(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words `[N, 8]` and their translations: word w is 2 w or 2 w + 1, all alike."""
    source = torch.randint(0, WORDS, (number, PLACES), generator=generator)
    mood = torch.rand(number, 1, generator=generator) < 0.5 + 0.05 * (source[:, :1] - 3.5)
    return source, 2 * source + mood


class Translator(nn.Module):
    """Scores `[N, 8, 16]` of all words at once."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2 * WORDS))

    def forward(self, source: Tensor) -> Tensor:
        """Every place sees its word and the first one."""
        inner = self.words(source)
        return self.layers(torch.cat([inner, inner[:, :1].expand_as(inner)], -1))


class CrossEntropy(nn.Module):
    """Cross-entropy of all words."""

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """The mean over places."""
        return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def train(model: nn.Module, loss: nn.Module, x: Tensor, y: Tensor, steps: int) -> list[Tensor]:
    """Trains a model, and returns its scores for all sentences after each quarter."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    found = []
    for step in range(steps):
        batch = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
        if (step + 1) % (steps // 4) == 0:
            found.append(model(x).detach())
    return found


def main() -> None:
    """Prints the BLEU of test sentences, before and after."""
    generator = torch.Generator().manual_seed(0)
    x, y = sentences(256, generator)
    test_x, test = sentences(512, generator)
    torch.manual_seed(0)
    bleu = mg.metric("bleu")
    start = Translator()
    moments = train(start, CrossEntropy(), x, y, steps=80)
    print(f"before                  BLEU {bleu(start(test_x), test).item():.3f}")

    net = mg.nets.Sequence(width=16, heads=2, blocks=1, generator=generator)
    learned = mg.ReLoss(bleu, net=net)
    sets = [(scores.unflatten(0, (-1, SET)), y.unflatten(0, (-1, SET))) for scores in moments]
    learned.learn(sets, steps=20, share=0.0, progress=False, generator=generator)

    for name, loss in (
        ("cross-entropy", CrossEntropy()),
        ("cross-entropy + ReLoss", mg.with_ordinary(learned)),
    ):
        model = copy.deepcopy(start)
        train(model, loss, x, y, steps=80)
        print(f"{name:22}  BLEU {bleu(model(test_x), test).item():.3f}")


if __name__ == "__main__":
    main()
