"""Logits -> tokens. A room of its own within `core`: nothing in it knows requests, queues or blocks.

`settings` says what one request wants, `state` what its tokens so far mean for the next one; `sampler` puts the rest
together: `edit` changes a row, `draw` chooses from it (with `noise` and `select`), `logprobs` reports on it.
"""

from muro.core.sampling.logprobs import PromptLogprobs
from muro.core.sampling.sampler import Sampled, Sampler
from muro.core.sampling.settings import NO_TOKEN, Sampling
from muro.core.sampling.state import Draw, SamplerState

__all__ = ["NO_TOKEN", "Draw", "PromptLogprobs", "Sampled", "Sampler", "SamplerState", "Sampling"]
