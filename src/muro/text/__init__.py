"""Between words and token ids: tokenizers, streaming detokenisation, stop strings, chat templates.

Pure: no process, no socket, no HTTP. Files are read by `load_tokenizer` and `load_chat_template` alone. Importing
this room imports neither `tokenizers` nor `jinja2`; they come with the extra `text`, when first needed.
"""

from muro.text.chat import ChatTemplate, load_chat_template
from muro.text.detokenizer import Detokenizer, detokenizer_for
from muro.text.stop import StopChecker
from muro.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = [
    "ByteTokenizer",
    "ChatTemplate",
    "Detokenizer",
    "StopChecker",
    "Tokenizer",
    "detokenizer_for",
    "load_chat_template",
    "load_tokenizer",
]
