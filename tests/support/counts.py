"""How often a failure case repeats: few times in the ordinary suite, in full with ``make cases``."""

import os

FULL = os.environ.get("MURO_FULL_COUNTS") == "1"


def count(reduced: int, full: int) -> int:
    """The number of rounds, requests or bytes that the running suite asks for."""
    return full if FULL else reduced
