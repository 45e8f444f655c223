"""Deciding and doing one step of inference: what runs next, on which cache blocks, and which token comes out.

Knows no process, socket, client or thread. `stepper.StepperEngine` is the door: it turns an `Executor` (a model
that computes logits) into an engine of `muro.engine.interface`.
"""
