"""options.py: tokens of thinking, in both forms; the bounds are tested with the scheduler."""

import pytest

from muro.core.options import SchedulerConfig, TokenIds
from muro.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"), [((), ()), ("", ()), ("12", (12,)), ("12,13", (12, 13)), ((4, 5), (4, 5))]
)
def test_token_ids_as_numbers_or_text(given: TokenIds, expected: tuple[int, ...]) -> None:
    config = SchedulerConfig(thinking_start_token_ids=given, thinking_end_token_ids=given)
    assert config.thinking_markers() == (expected, expected)


def test_what_is_no_token_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="thinking_start_token_ids"):
        SchedulerConfig(thinking_start_token_ids="<think>", thinking_end_token_ids="2")


def test_one_without_the_other_is_refused() -> None:
    with pytest.raises(ConfigError, match="go together"):
        SchedulerConfig(thinking_start_token_ids="1")
