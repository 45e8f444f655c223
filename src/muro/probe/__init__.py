"""Looking at the wire of others: stand between a front-end and its engines, record, show, play again.

Does not take part: what passes is the peers' own. Everything here is for the command `muro wire`.
"""
