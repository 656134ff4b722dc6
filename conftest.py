"""What all tests and doctests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Starts from the same random numbers, whatever ran before in the same process."""
    torch.manual_seed(0)
