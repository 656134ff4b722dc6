"""The laws that metricgrad keeps; `test_contracts.py` first, then one file per module."""
