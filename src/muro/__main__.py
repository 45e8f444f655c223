"""`python -m muro` is the command `muro`."""

from muro.cli.main import main

main()
