"""`POST /v1/embeddings`."""

from __future__ import annotations

from muro.server.admission import Ticket
from muro.server.deadlines import Deadlines
from muro.server.exchange import BodyBounds, Exchange
from muro.server.offers import check_ids
from muro.server.schemas.embeddings import EmbeddingList, EmbeddingRequest, EmbeddingUsage, inputs_of, written
from muro.server.schemas.request import decode_request
from muro.server.service import Service
from muro.wire.request import QUEUE_TIMEOUT, PoolingParams


class EmbeddingWork:
    """See `reception.Work`. Whether the model gives embeddings is the engine's to say."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def bounds(self) -> BodyBounds:
        return self._service.body_bounds

    async def answer(self, exchange: Exchange, body: bytes, ticket: Ticket, deadlines: Deadlines) -> str:
        service = self._service
        async with deadlines.enforced(), service.reading(len(body)):
            request = decode_request(body, EmbeddingRequest)
            if request.timeouts is not None:
                deadlines.ask(request.timeouts)
            model = service.check_model(request.model)
            del body
            words, special = service.llm.words, request.add_special_tokens
            prompts = [await words.encode_async(text, add_special=special) for text in inputs_of(request)]
        ticket.hold(0)
        check_ids(prompts, None, words.tokenizer.vocab_size, service.llm.engines)
        tokens = sum(map(len, prompts))
        ticket.queue(len(prompts), tokens)
        queue = deadlines.queue
        params = PoolingParams(
            use_activation=request.normalize,
            dimensions=request.dimensions,
            task="embed",
            extra_kwargs=None if queue is None else {QUEUE_TIMEOUT: queue},
        )

        def on_vector() -> None:
            ticket.begin()
            deadlines.begin()

        async with deadlines.enforced():
            vectors = await service.llm.embed(exchange.request_id, prompts, params, on_vector=on_vector)
        data = [written(index, vector, request.encoding_format) for index, vector in enumerate(vectors)]
        head = (f"embd-{exchange.request_id}", service.created_now(), model)
        await exchange.reply_json(200, EmbeddingList(*head, data, EmbeddingUsage(tokens, tokens)))
        return "done"
