"""Which release of vLLM writes which fields: one table, and a layout per release made from it."""

from muro.wire.releases.layout import Layout
from muro.wire.releases.table import (
    LAYOUTS,
    NEWEST,
    SAFE,
    layout_for,
    layout_for_add_length,
    layout_for_call,
    layout_of_engine,
    newest_lora,
)

__all__ = [
    "LAYOUTS",
    "NEWEST",
    "SAFE",
    "Layout",
    "layout_for",
    "layout_for_add_length",
    "layout_for_call",
    "layout_of_engine",
    "newest_lora",
]
