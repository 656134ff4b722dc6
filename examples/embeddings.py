"""Train embeddings for retrieval on mean average precision: each row of similarities is a set.

Every item of a batch is a query, and all others are its documents: the similarities `[B, B]` are B
sets of B items. Relevant are those of the same class, and `where` leaves out the query itself. The
loss is 1 - MAP, which is what retrieval reports. The items are scikit-learn's handwritten digits.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import metricgrad as mg


def similarities(embeddings: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines of all pairs, which of them are relevant, and which of them count, `[B, B]`."""
    unit = F.normalize(embeddings, dim=-1)
    itself = torch.eye(len(classes), dtype=torch.bool)
    return unit @ unit.T, classes[:, None] == classes, ~itself


def main() -> None:
    """Prints the MAP of test images by their pixels, and by the trained embeddings."""
    pixels, digits = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32) / 16
    y = torch.tensor(digits)
    train = 1000
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    loss = mg.UniLoss("map", slope=10.0)  # steep, as cosines lie close together
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        batch = torch.randint(0, train, (96,))
        optimizer.zero_grad()
        loss(*similarities(model(x[batch]), y[batch])).backward()
        optimizer.step()

    test = x[train:]
    for name, embeddings in (("pixels", test), ("embeddings", model(test).detach())):
        scores, relevant, where = similarities(embeddings, y[train:])
        found = mg.metric("map")(scores, relevant, where=where).mean().item()
        print(f"MAP of test images by {name}: {found:.3f}")


if __name__ == "__main__":
    main()
