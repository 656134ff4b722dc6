"""One profile for all property tests: deterministic, so that a failure in CI is a failure at home."""

import hypothesis

hypothesis.settings.register_profile("metricgrad", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.load_profile("metricgrad")
