"""Token counts of a request, as in OpenAI's `usage`."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct):
    """Tokens of the prompt, of all choices together, and their sum."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
