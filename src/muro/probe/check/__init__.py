"""`muro wire check`: is a peer a good speaker of the protocol?

Two examinations. An engine is examined by a front-end of bare sockets (`engine_link`), a front-end by an engine
(`frontend_link`) and, where its HTTP API is given, by its users (`asking`). What is asked is in `engine_cases` and
`frontend_cases`; what may never happen, whatever is asked, in `engine_rules` and `frontend_rules`. These four are pure:
they know a link by its methods, and time by what it says. The rules judge recordings too (`recorded`).
"""

from muro.probe.check.engine_link import check_engine
from muro.probe.check.frontend_link import check_frontend
from muro.probe.check.recorded import check_recording
from muro.probe.check.report import Case, Finding, Outcome, Report

__all__ = ["Case", "Finding", "Outcome", "Report", "check_engine", "check_frontend", "check_recording"]
