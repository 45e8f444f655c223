"""Data-parallel logic, pure: waves, load, balance, agreement. No thread, socket or clock; time is an argument."""
