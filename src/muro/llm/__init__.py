"""What lies between people's words and a client: prompts in, texts out, for many choices of many requests.

`pipeline` decides and is pure; `aio.AsyncLLM` and `offline.LLM` are thin shells over the two kinds of client. Nothing
here knows HTTP. Importing this room loads neither a tokenizer nor a socket.
"""
