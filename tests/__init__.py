"""The tests, by cost: `unit` and `api` (no process, no port), `contract`, `process`, `chaos`, `interop`."""
