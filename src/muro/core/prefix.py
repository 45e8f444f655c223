"""Equal beginnings: hashes by which the scheduler finds out that the cache holds what a request begins with.

The hash of a block covers all tokens up to its end, for each is made of the one before it: SHA-256, which nobody can
make collide, so nobody is answered out of another one's prompt. The first is made of a secret of this process, of the
request's `cache_salt` and of its LoRA adapter: requests that differ there share nothing.

Does not know which blocks hold what; that is `blocks.py`.
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import sha256

from muro.core.request import Request
from muro.wire.stats import PrefixCacheStats


class PrefixHasher:
    """Hashes of the full blocks of requests, made when they are asked for and kept in the request."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._secret = secrets.token_bytes(32)

    def forget(self) -> None:
        """From now on nothing equals what was before. Requests that hold blocks go on with what they have."""
        self._secret = secrets.token_bytes(32)

    def is_current(self, request: Request) -> bool:
        """Whether what the request has computed may be found by others: `forget` was not called meanwhile."""
        return request.hash_secret is self._secret

    def begin(self, request: Request) -> None:
        """Say that the request holds no block of an earlier time."""
        if request.hash_secret is not self._secret:
            request.hash_secret = self._secret
            request.block_hashes.clear()

    def hashes(self, request: Request, num_blocks: int) -> list[bytes]:
        """The hashes of the first blocks, at least `num_blocks`; these must be full of tokens that are known."""
        hashes = request.block_hashes
        if len(hashes) < num_blocks:
            size, tokens = self._block_size, request.token_ids
            digest = hashes[-1] if hashes else self._root(request)
            for start in range(len(hashes) * size, num_blocks * size, size):
                digest = sha256(digest + array("q", tokens[start : start + size]).tobytes()).digest()
                hashes.append(digest)
        return hashes

    def _root(self, request: Request) -> bytes:
        # Lengths first, so that no salt can look like another request's salt and adapter.
        salt = (request.cache_salt or "").encode("utf-8", "surrogatepass")
        marks = f"{request.cache_salt is not None} {request.lora_id} {len(salt)} ".encode()
        return sha256((request.hash_secret or b"") + marks + salt).digest()


def count_lookup(stats: PrefixCacheStats, num_tokens: int, num_hits: int, *, preempted: bool) -> None:
    """Count that a request asked for its first `num_tokens` tokens and found `num_hits`."""
    if preempted:
        stats.preempted_requests += 1
        stats.preempted_queries += num_tokens
        stats.preempted_hits += num_hits
    else:
        stats.requests += 1
        stats.queries += num_tokens
        stats.hits += num_hits
