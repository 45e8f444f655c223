"""Several server processes over the same engines: their parent, and what each has instead of engines of its own.

`lead.lead` is the parent's life: it starts the engines and the servers, watches both, and serves nobody. A server gets
its client from `member.join`. What they say to each other stands in `words`.
"""
