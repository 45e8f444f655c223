"""Token counts of a request, as in OpenAI's `usage`."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """How many tokens of the prompts need not be computed, because they were before."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of the prompt, of all choices together, and their sum; details if the engine tells any."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET
