"""`Ranked` lives in `learning.py`; this name goes once nothing imports it from here."""

from metricgrad.surrogates.learning import Ranked as Ranked
