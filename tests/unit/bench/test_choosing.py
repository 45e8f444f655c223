"""choosing.py: every case is measured at every step, on the tokens that were chosen before."""

from __future__ import annotations

import numpy as np

from muro.bench import choosing


def test_steps_and_choices_take_turns() -> None:
    vocab, calls = 50, []
    generator = np.random.default_rng(1)

    def step(token_ids: list[list[int]], past: int) -> np.ndarray:
        calls.append(([list(ids) for ids in token_ids], past))
        return generator.standard_normal((len(token_ids), vocab)).astype(np.float32)

    result = choosing.run(step, vocab, choosing.texts_of([], vocab), rounds=2)
    texts, past = calls[0]
    assert len(texts) == choosing.STREAMS and past == 0
    assert [past for _, past in calls[1:]] == [16, 17, 18, 19]
    assert all(len(ids) == 1 for texts, _ in calls[1:] for ids in texts)
    assert result["decode_step_64_ms"] >= 0
    assert set(result["sampling_64"]) == set(choosing.CASES)
    assert all(case["ms"] > 0 and case["percent_of_step"] > 0 for case in result["sampling_64"].values())


def test_each_stream_goes_on_from_another_piece() -> None:
    for ids in ([], [1] * 50, list(range(80))):
        texts = choosing.texts_of(ids, 100)
        assert [len(text) for text in texts] == [choosing.PROMPT] * choosing.STREAMS
        assert len({tuple(text) for text in texts}) > choosing.STREAMS // 2
        assert all(0 <= token < 100 for text in texts for token in text)
    assert choosing.texts_of(list(range(80)), 100)[3] == list(range(3, 19))
