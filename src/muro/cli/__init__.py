"""The command line: one file per command; what each does is done elsewhere. Heavy rooms are imported when they run."""
