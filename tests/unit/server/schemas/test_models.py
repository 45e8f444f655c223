"""models.py: the list of models as the official client reads it."""

from __future__ import annotations

import msgspec
import openai.types

from muro.server.schemas.models import ModelCard, ModelList


def test_list_is_read_by_the_official_client() -> None:
    body = msgspec.json.decode(msgspec.json.encode(ModelList([ModelCard("m", 1_700_000_000, 2048)])))
    assert body["object"] == "list"
    read = openai.types.Model.model_validate(body["data"][0], strict=True)
    assert (read.id, read.object, read.owned_by) == ("m", "model", "muro")
