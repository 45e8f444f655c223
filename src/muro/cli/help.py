"""The help page of a command: flags in full, whatever the width of the terminal, under the headings of their panels.

A table, as typer draws it, cuts long flags to keep its columns; here a long flag gets a line of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Sequence


class Command(TyperCommand):
    """A command whose help lists its flags by `rich_help_panel`, in the order in which the panels first appear."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Called by typer while it writes the help."""
        for heading, rows in self._sections(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def _sections(self, ctx: Any) -> dict[str, Sequence[tuple[str, str]]]:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is not None:
                plain = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or plain, []).append(row)
        return dict(sections)
