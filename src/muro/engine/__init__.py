"""The contract that a plugged-in engine fulfils, and the one place that drives it."""

from muro.engine.interface import Engine, EngineCore, EngineInfo, StepResult, operation

__all__ = ["Engine", "EngineCore", "EngineInfo", "StepResult", "operation"]
