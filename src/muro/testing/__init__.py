"""Tools for people who build on muro: engines that misbehave on command, and the conformance suite."""
