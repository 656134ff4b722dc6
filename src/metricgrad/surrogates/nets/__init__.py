r"""The networks of learned losses: from the scores and target of sets to one number each.

    Classification   classes: the probability of the target's class, item by item (Eqn. 10)
    SetNetwork       binary, grades, labels, classes: target and score of all items at once
    Sequence         text: the probability of the target's token at every place, and attention
    Spans            start and end: the probability of every place to be either, and attention
    Heatmaps         poses: embeddings of the predicted map and of a Gaussian around the joint
    Embeddings       classes, text: distance of embedded probabilities from the embedded target
                     (LS-ED)

A network sees nothing else, and lower is better. Hidden layers are ELU, whose slope has no jumps:
the gradient penalty needs a second derivative, and the model that descends the loss a smooth first
one.
"""

from metricgrad.surrogates.nets.base import LossNet as LossNet
from metricgrad.surrogates.nets.embeddings import Embeddings as Embeddings
from metricgrad.surrogates.nets.items import Classification as Classification
from metricgrad.surrogates.nets.items import Heatmaps as Heatmaps
from metricgrad.surrogates.nets.items import Sees as Sees
from metricgrad.surrogates.nets.items import SetNetwork as SetNetwork
from metricgrad.surrogates.nets.text import Sequence as Sequence
from metricgrad.surrogates.nets.text import Spans as Spans
