"""An executor whose hidden states tell token and position, and what becomes of them."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from muro.core.executor import ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.engine.interface import FailureCallback
from muro.wire.request import EngineCoreRequest, PoolingParams, SamplingParams

WIDTH, VOCAB = 3, 50


class TellingExecutor:
    """The hidden state of a token is [1, token, position]; logits are even."""

    def __init__(self, pooling: str | None = "mean", *, num_blocks: int = 16, apart: bool = False) -> None:
        self._info = ExecutorInfo(
            max_model_len=40, num_blocks=num_blocks, block_size=4, vocab_size=VOCAB, hidden_size=WIDTH, pooling=pooling
        )
        self._pool = ThreadPoolExecutor(1) if apart else None
        self.computed: list[tuple[str, int, int]] = []
        self.wrong: np.ndarray | None = None

    def info(self) -> ExecutorInfo:
        return self._info

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        return self._compute(plan) if self._pool is None else self._pool.submit(self._compute, plan)

    def _compute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        hidden, rows = [], 0
        for sequence in plan.sequences:
            start = sequence.num_computed_tokens
            self.computed.append((sequence.request_id, start, len(sequence.token_ids)))
            states = [[1, token, start + i] for i, token in enumerate(sequence.token_ids)]
            hidden += states[len(states) - sequence.num_hidden :]
            rows += sequence.num_logits
        found = np.array(hidden, np.float32).reshape(-1, WIDTH)
        return ModelRunnerOutput(np.zeros((rows, VOCAB), np.float32), found if self.wrong is None else self.wrong)

    def on_failure(self, callback: FailureCallback) -> None:
        """Never."""

    def shutdown(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def pooled(request_id: str, prompt: list[int], **params: object) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        pooling_params=PoolingParams(**{"use_activation": False, **params}),
    )


def generated(request_id: str, prompt: list[int], count: int) -> EngineCoreRequest:
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    return EngineCoreRequest(request_id=request_id, prompt_token_ids=prompt, sampling_params=params)


def expected(prompt: list[int], kind: str) -> list[float]:
    states = np.array([[1, token, i] for i, token in enumerate(prompt)])
    return (states.mean(axis=0) if kind == "mean" else states[-1]).tolist()
