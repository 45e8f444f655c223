"""One file per kind of route. A handler takes an `Exchange` and answers it; what it raises is answered for it."""
