"""Tools shared by the tests.

`deadline` waits for things that another thread or process does, `leaks` says what a test left behind,
`counts` gives the size of a failure case.
"""
