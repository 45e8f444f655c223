"""The bodies of OpenAI's HTTP API, as far as they are served here, as plain structs. No HTTP, no I/O."""
