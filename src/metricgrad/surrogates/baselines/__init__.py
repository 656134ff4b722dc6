"""What people train on today, each from its paper, as drop-in surrogates."""

from metricgrad.surrogates.baselines.base import Baseline as Baseline
from metricgrad.surrogates.baselines.binary import GlobalObjective as GlobalObjective
from metricgrad.surrogates.baselines.binary import PairwiseRanking as PairwiseRanking
from metricgrad.surrogates.baselines.binary import SmoothAP as SmoothAP
from metricgrad.surrogates.baselines.decisions import Lovasz as Lovasz
from metricgrad.surrogates.baselines.decisions import SoftFBeta as SoftFBeta
from metricgrad.surrogates.baselines.decisions import SoftJaccard as SoftJaccard
from metricgrad.surrogates.baselines.decisions import SoftMcc as SoftMcc
from metricgrad.surrogates.baselines.pointwise import CrossEntropy as CrossEntropy
from metricgrad.surrogates.baselines.pointwise import Focal as Focal
from metricgrad.surrogates.baselines.pointwise import HeatmapMSE as HeatmapMSE
from metricgrad.surrogates.baselines.ranking import ApproxNDCG as ApproxNDCG
from metricgrad.surrogates.baselines.ranking import LambdaLoss as LambdaLoss
from metricgrad.surrogates.baselines.ranking import ListNet as ListNet
from metricgrad.surrogates.baselines.ranking import RankLoss as RankLoss
