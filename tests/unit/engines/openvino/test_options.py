import pytest

from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError


@pytest.mark.parametrize("name", ["cache_memory_mb", "max_model_len", "threads"])
def test_values_that_make_no_sense(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        OpenVINOOptions(**{name: 0})
