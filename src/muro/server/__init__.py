"""OpenAI-compatible HTTP in front of a client: requests in, JSON and event streams out.

What lies between words and the engine is the business of `llm`; nothing here tokenises or samples.
"""
