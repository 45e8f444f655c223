import json
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.models.sampling import SamplingDefaults, read_sampling_defaults


def write(directory: Path, **values: object) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(values))
    return directory


def test_what_the_model_recommends(tmp_path: Path) -> None:
    write(tmp_path, temperature=0.2, top_p=0.9, top_k=None, eos_token_id=2, do_sample=True)
    assert read_sampling_defaults(tmp_path) == SamplingDefaults(temperature=0.2, top_p=0.9)


def test_without_a_directory_or_a_file_the_values_are_neutral(tmp_path: Path) -> None:
    assert read_sampling_defaults(None) == read_sampling_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize("values", [{"temperature": -1}, {"top_p": 0}, {"top_k": "many"}])
def test_a_wrong_recommendation_is_named(tmp_path: Path, values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        read_sampling_defaults(write(tmp_path, **values))
