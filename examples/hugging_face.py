"""Train a transformer on F1 with Hugging Face's Trainer: `compute_loss_func` takes the loss.

Two settings expect a mean over items, which the parts of a batch can share; F1 is none:

    average_tokens_across_devices   must be False; True multiplies the loss by the processes
    gradient_accumulation_steps     must be 1: four batches of 16 have four F1, not the F1 of 64,
                                    and their gradients would be added up, not averaged

Where a batch of 64 does not fit into memory, `in_chunks` gives the gradient of its F1 with 16 texts
at a time. That runs the model, so it replaces `compute_loss`. Both trainers below do the same. The
model is tiny and random, so nothing is downloaded.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import metricgrad as mg

loss = mg.across_ranks(mg.UniLoss("f1"))


def compute_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """1 - F1 of the batch."""
    return loss(outputs.logits, labels)


class Logits(nn.Module):
    """The scores of a model, without what else it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """Scores `[n, 2]`."""
        return self.model(**inputs).logits


class ChunkedTrainer(Trainer):
    """A Trainer that runs the model on 16 texts at a time."""

    def compute_loss(self, model: nn.Module, inputs: Any, *_: Any, **__: Any) -> Any:
        """1 - F1 of the batch."""
        labels = inputs.pop("labels")
        return mg.in_chunks(Logits(model), loss, chunk=16)(inputs, labels)


def main() -> None:
    """Trains with either, and prints the F1 of the data, which is the same."""
    ids = torch.randint(1, 20, (512, 8), generator=torch.Generator().manual_seed(0))
    labels = (ids == 7).any(-1).long()
    texts: Any = [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]
    small: Any = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=20, intermediate_size=64, **small)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0  # to compare the two
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=64,
        num_train_epochs=6,
        learning_rate=5e-3,
        average_tokens_across_devices=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    for chunked in (False, True):
        torch.manual_seed(0)
        model = BertForSequenceClassification(config)
        if chunked:
            ChunkedTrainer(model, arguments, train_dataset=texts).train()
        else:
            Trainer(model, arguments, train_dataset=texts, compute_loss_func=compute_loss).train()
        f1 = mg.metric("f1")(model.eval()(input_ids=ids).logits, labels)
        print(f"{'in chunks of 16' if chunked else 'batches of 64'}: F1 {f1.item():.3f}")


if __name__ == "__main__":
    main()
