"""The version, in one place: reading it from the installed distribution would cost every process 30 ms."""

VERSION = "0.1.0"
