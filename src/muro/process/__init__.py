"""The child that hosts one engine: EngineCoreProc and its threads."""
