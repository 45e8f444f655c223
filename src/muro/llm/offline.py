"""LLM: a list of prompts in, a list of outputs out, as users of vLLM know it. Over the client for threads."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, cast

import msgspec

from muro.clients.connect import OnProgress
from muro.clients.connect import connect as connect_engines
from muro.clients.interface import EngineCoreClient
from muro.config import ConnectConfig
from muro.errors import InvalidRequestError
from muro.llm import pipeline
from muro.llm.offline_replay import Batch
from muro.llm.outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, RequestOutput
from muro.llm.pipeline import Choice, Standing
from muro.llm.replay import RESTART_WAIT, DeathPolicy, seeded
from muro.llm.words import (
    Prompt,
    Words,
    cache_salt_of,
    effective_length,
    is_list,
    load_words,
    make_choice,
    split_prompt,
)
from muro.wire.failure import error_from_wire
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest, PoolingParams, SamplingParams

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model in a process of its own that answers lists of prompts.

    What sampling parameters ask for is the engine's to honour or to refuse by name; an engine whose tokens come from
    no distribution, such as echo, is free to ignore how to sample, and gives no log-probabilities. (The HTTP server
    refuses whatever it does not offer, for any engine.)

    The one constructor here that does something: it starts the engine, because users of vLLM expect that.

    Args:
        model: a model directory, or the name of a model that `muro pull` has fetched.
        on_progress: told how the start goes.
        connect: how many engines, where; of its `engine` all but engine, model and options holds.
        on_engine_death: "fail": the end of the last engine is the end of this object, and that of any one the end of
            a call that it works for. "replay": another engine is started, and what was running goes on where it was.
        restart_wait: seconds that a call waits for the new engine.
        choice: further fields of `ModelChoice`, for instance `engine="echo"`.

    Raises:
        ConfigError: a setting is wrong.
        StartupError: the engine did not come up.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        on_progress: OnProgress | None = None,
        connect: ConnectConfig | None = None,
        on_engine_death: Literal["fail", "replay"] = "fail",
        restart_wait: float = RESTART_WAIT,
        **choice: Any,
    ) -> None:
        chosen = make_choice(model, choice)
        self._policy = DeathPolicy(on_engine_death=on_engine_death, restart_wait=restart_wait)
        tokenizer, template = load_words(chosen)
        config = connect or ConnectConfig()
        engine, restart = chosen.engine_config(config.engine), self._policy.restarts(config.restart)
        client = connect_engines(
            msgspec.structs.replace(config, engine=engine, restart=restart), on_progress=on_progress
        )
        try:
            ready = [status.ready.max_model_len for status in client.engines() if status.ready]
            length = effective_length(ready, chosen.max_model_len)
            self._words = Words(tokenizer, template, length, chosen.sampling_defaults())
        except BaseException:
            client.close()
            raise
        self._client: EngineCoreClient = client
        self._numbers = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt; outputs come in the order of the prompts.

        Args:
            prompts: one prompt, or a list. A list of integers is one prompt of token ids.
            sampling_params: for all prompts, or one for each.
            priority: one for each; smaller runs earlier, on an engine that schedules by it.

        Raises:
            RequestError: a prompt cannot be served, or has ended engines; the others are aborted.
            EngineDeadError: the engine has ended, and there is none to go on with.
        """
        listed = _listed(prompts)
        params = _params_for(listed, sampling_params or self._words.default_params())
        priorities = [0] * len(listed) if priority is None else list(priority)
        if len(priorities) != len(listed):
            what = f"{len(priorities)} priorities for {len(listed)} prompts"
            raise InvalidRequestError(what, param="priority")
        jobs, replays = [], self._policy.on_engine_death == "replay"
        for prompt, wanted, first in zip(listed, params, priorities, strict=True):
            pipeline.check_params(wanted)
            text, plain = split_prompt(prompt)
            ids, standing = self._words.encode(plain), Standing(first, cache_salt_of(prompt))
            jobs.append(_Job(str(next(self._numbers)), text, ids, wanted, self._words, replays, standing))
        self._run(jobs)
        return [job.output() for job in jobs]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer one chat or several; `template` as for `ChatTemplate.render`."""
        chats: list[Any] = [messages] if _is_one_chat(messages) else list(messages)
        texts = [self._words.render(chat, **template) for chat in chats]
        prompts = [self._words.tokenizer.encode(text, add_special=False) for text in texts]
        outputs = self.generate(prompts, sampling_params)
        for output, text in zip(outputs, texts, strict=True):
            output.prompt = text
        return outputs

    def embed(
        self, prompts: Prompt | Sequence[Prompt], pooling_params: PoolingParams | None = None
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of every prompt, in their order; by default vectors of length 1.

        Raises:
            UnsupportedOptionError: the model gives none, or not of this kind.
            RequestError: a prompt cannot be served, or has ended engines; the others are aborted.
            EngineDeadError: the engine has ended, and there is none to go on with.
        """
        params = pooling_params or PoolingParams(task="embed")
        requests = {}
        for prompt in _listed(prompts):
            ids = self._words.encode(split_prompt(prompt)[1])
            name = str(next(self._numbers))
            requests[name] = EngineCoreRequest(name, ids, pooling_params=params, external_req_id=name)
        vectors: dict[str, EmbeddingOutput] = {}
        batch = Batch(self._client, self._policy)
        try:
            for request in requests.values():
                batch.add(request)
            while len(vectors) < len(requests):
                for output in batch.outputs():
                    vectors[output.request_id] = _embedding(output)
        except BaseException:
            batch.abort()
            raise
        return [
            EmbeddingRequestOutput(name, request.prompt_token_ids or [], vectors[name])
            for name, request in requests.items()
        ]

    def close(self) -> None:
        """Stop the engine. Happens by itself when the object is lost, or the interpreter ends."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, jobs: Sequence[_Job]) -> None:
        """Send everything, take outputs until all have ended. Whatever interrupts it ends what is in flight."""
        waiting: dict[str, _Answer] = {}
        batch = Batch(self._client, self._policy)
        try:
            for job in jobs:
                for request, answer in zip(job.requests, job.answers, strict=True):
                    waiting[request.request_id] = answer
                    batch.add(request)
            while waiting:
                for output in batch.outputs():
                    _take(output, waiting, batch)
        except BaseException:
            batch.abort()
            raise


def _embedding(output: EngineCoreOutput) -> EmbeddingOutput:
    if output.pooling_output is not None:
        return EmbeddingOutput(output.pooling_output.numpy().tolist())
    raise error_from_wire(output.error, output.finish_reason, request_id=output.request_id)


def _take(output: EngineCoreOutput, waiting: dict[str, _Answer], batch: Batch) -> None:
    answer = waiting.get(output.request_id)
    if answer is None:  # a stop string has ended it
        return
    if output.finish_reason is not None:
        del waiting[output.request_id]
        if output.finish_reason == FinishReason.ERROR:
            raise error_from_wire(output.error, request_id=output.request_id)
    answer.texts.append(answer.choice.take([output]).text)
    if answer.choice.stopped_early and waiting.pop(output.request_id, None) is not None:
        batch.end(output.request_id)


class _Answer:
    """One choice and its text so far."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.texts: list[str] = []

    def output(self) -> CompletionOutput:
        choice = self.choice
        text = "".join(self.texts)
        ended, said = (choice.finish_reason, choice.stop_reason), (choice.logprobs, choice.cumulative_logprob)
        return CompletionOutput(choice.index, text, choice.token_ids, *ended, *said)


class _Job:
    """One prompt of a call, with its requests and what became of them."""

    def __init__(
        self,
        request_id: str,
        text: str | None,
        ids: list[int],
        params: SamplingParams,
        words: Words,
        replays: bool,
        standing: Standing,
    ) -> None:
        self._request_id = request_id
        self._text = text
        self._ids = ids
        fitted = pipeline.engine_params(params, len(ids), words.tokenizer, words.max_model_len)
        if replays:
            fitted = seeded(fitted, secrets.randbits(62))
        self.requests = pipeline.fan_out(request_id, ids, fitted, params.n, external_id=request_id, standing=standing)
        self.answers = [
            _Answer(Choice(index, request.request_id, params, words.tokenizer))
            for index, request in enumerate(self.requests)
        ]

    def output(self) -> RequestOutput:
        outputs, first = [answer.output() for answer in self.answers], self.answers[0].choice
        said = (first.prompt_logprobs, first.cached_tokens)
        return RequestOutput(self._request_id, self._text, self._ids, outputs, True, *said)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list; whether each is one is `split_prompt`'s to say."""
    listed = cast(Sequence[Prompt], prompts)
    return list(listed) if is_list(prompts) and not (listed and isinstance(listed[0], int)) else [cast(Prompt, prompts)]


def _is_one_chat(messages: Any) -> bool:
    """One chat, or nothing that could be several: then the template says what is wrong with it."""
    return not is_list(messages) or not messages or not is_list(messages[0])


def _params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams]
) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams) or not is_list(params):
        return [cast(SamplingParams, params)] * len(prompts)
    if len(params) != len(prompts):
        what = f"{len(params)} sampling parameters for {len(prompts)} prompts; give one, or one for each"
        raise InvalidRequestError(what, param="sampling_params")
    return params
