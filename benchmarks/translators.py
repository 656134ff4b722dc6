"""Two transformers that translate: one token after another (the teacher), or all at once.

The second one is told or guesses how long the translation is. Its decoder starts from the source's
pieces, stretched to that length, and gives every place a token, without knowing what the others
get. It learns from the teacher's translations, which are more alike than people's.
"""

import torch
from torch import Tensor, nn

from benchmarks.multi30k import BEGIN, END, PAD

_NEVER = -1e4  # the score of a token that a place cannot have
_GUESSING = 64


class Transformer(nn.Module):
    """An encoder and a decoder that share the embeddings of their pieces."""

    def __init__(self, vocabulary: int, width: int, layers: int, places: int) -> None:
        super().__init__()
        self.places = places
        self.pieces = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.pieces.weight, std=width**-0.5)
        self.here = nn.Embedding(places + 1, width)
        nn.init.normal_(self.here.weight, std=width**-0.5)
        heads = max(1, width // 48)
        options = {"dim_feedforward": 2 * width, "batch_first": True, "norm_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, dropout=0.1, **options),
            layers,
            nn.LayerNorm(width),
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(width, heads, dropout=0.1, **options),
            layers,
            nn.LayerNorm(width),
        )

    def placed(self, embedded: Tensor) -> Tensor:
        """Embeddings `[N, T, width]` with those of their places added."""
        return embedded + self.here.weight[: embedded.shape[1]]

    def read(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder makes of sources `[N, S]`, and which places are padding."""
        source = source[:, : max(1, int((source != PAD).sum(-1).max()))]
        hidden = source == PAD
        inner = self.placed(self.pieces(source))
        return self.encoder(inner, src_key_padding_mask=hidden), hidden

    def scores(self, inner: Tensor) -> Tensor:
        """Scores of the pieces, `[..., V]`; padding is never said."""
        found = inner @ self.pieces.weight.T
        never = torch.arange(found.shape[-1]) == PAD
        return found.masked_fill(never, _NEVER)


class Teacher(Transformer):
    """Says one piece after another, each knowing those before it."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores `[N, T + 1, V]` of the pieces of targets `[N, T]` and of the end."""
        begin = torch.full_like(target[:, :1], BEGIN)
        return self.scores(self._follow(*self.read(source), torch.cat([begin, target], 1)))

    def _follow(self, memory: Tensor, hidden: Tensor, said: Tensor) -> Tensor:
        number = said.shape[1]
        later = torch.ones(number, number, dtype=torch.bool).triu(1)
        return self.decoder(
            self.placed(self.pieces(said)),
            memory,
            tgt_mask=later,
            memory_key_padding_mask=hidden,
        )

    @torch.no_grad()
    def translate(self, source: Tensor) -> Tensor:
        """The likeliest next piece, again and again: ids `[N, places]`, padded."""
        self.eval()
        memory, hidden = self.read(source)
        said = torch.full((len(source), 1), BEGIN)
        ended = torch.zeros(len(source), dtype=torch.bool)
        while said.shape[1] <= self.places and not ended.all():
            last = self._follow(memory, hidden, said)[:, -1]
            token = self.scores(last).argmax(-1)
            ended |= token == END
            said = torch.cat([said, token.masked_fill(ended, PAD).unsqueeze(-1)], 1)
        missing = self.places + 1 - said.shape[1]
        return nn.functional.pad(said[:, 1:], (0, missing), value=PAD)


class Guess(nn.Module):
    """How long the translation is, from the source's pieces alone; trained once and then frozen."""

    def __init__(self, vocabulary: int, places: int) -> None:
        super().__init__()
        self.pieces = nn.Embedding(vocabulary, _GUESSING, padding_idx=PAD)
        self.long = nn.Embedding(places + 1, _GUESSING)
        self.layers = nn.Sequential(
            nn.Linear(2 * _GUESSING, _GUESSING), nn.ReLU(), nn.Linear(_GUESSING, places + 1)
        )

    def forward(self, source: Tensor) -> Tensor:
        """Scores `[N, places + 1]` of the lengths of translations of `[N, S]`."""
        lengths = (source != PAD).sum(-1)
        return self.layers(torch.cat([self.pieces(source).sum(1), self.long(lengths)], -1))


class Parallel(Transformer):
    """Says all pieces at once (Gu et al., 2018, without fertilities)."""

    def __init__(self, vocabulary: int, width: int, layers: int, places: int) -> None:
        super().__init__(vocabulary, width, layers, places)
        self.guess = Guess(vocabulary, places).requires_grad_(False)

    def forward(self, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores `[N, T, V]`, with lengths `[N]` given or guessed.

        T is the greatest length while it trains, and always the most places otherwise. Places
        behind the end of a translation have padding as their token.
        """
        if lengths is None:
            return self(source, self.guess(source)[:, 1:].argmax(-1) + 1)
        memory, hidden = self.read(source)
        number = int(lengths.max())
        places = torch.arange(number)
        before = places < lengths.unsqueeze(-1)
        # Place t of T starts from piece t S / T of the source's S.
        ratio = (source != PAD).sum(-1) / lengths
        copied = ((places + 0.5) * ratio.unsqueeze(-1)).long().clamp(max=hidden.shape[1] - 1)
        start = self.placed(self.pieces(source.gather(1, copied)))
        inner = self.decoder(
            start, memory, tgt_key_padding_mask=~before, memory_key_padding_mask=hidden
        )
        scores = self.scores(inner)
        ended = torch.zeros(scores.shape[-1])
        ended[PAD] = -_NEVER
        scores = torch.where(before.unsqueeze(-1), scores, ended)
        if self.training:
            return scores
        rest = ended.expand(len(source), self.places - number, -1)
        return torch.cat([scores, rest], 1)
