"""What real foreign peers need: their programs and a model directory, fetched the first time and kept."""

from pathlib import Path

import pytest

from muro.config import home
from muro.models.pull import pull
from tests.support.vllm_rs import fetch


@pytest.fixture(scope="session")
def model() -> Path:
    """Tokenizer, configuration and chat template of a small model; our engines here need no weights."""
    return pull("demo", home())


@pytest.fixture(scope="session")
def vllm_rs() -> Path:
    return fetch()
