"""The two import contracts of this project, as contract types for import-linter.

`RoomsContract` holds the direction of imports: a table with one row per room (a direct child of the
package) that names *all* the rooms it may import. `OutsideContract` says which rooms alone may use a
package from outside, and which modules a pure file must never touch.

Both look at every import statement, inside functions and under TYPE_CHECKING too. The tables are in
pyproject.toml. A row about something that is not built yet is reported as a warning, never passed over
in silence; a room without a row breaks the contract.
"""

from collections.abc import Iterable, Iterator

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

_ANYTHING = "*"


class RoomsContract(Contract):
    """Each room imports the commons and what its row names, and nothing else of the package.

    Options:
        package: the package whose direct children are the rooms.
        commons: rooms open to every other room; each has a row for what it may import itself.
        rooms: rows ``"room: other other"``. ``*`` stands for every room, ``-other`` takes one away.
            The package's own ``__init__`` is the row with the package's name.
    """

    type_name = "rooms"

    package = fields.StringField()
    commons = fields.ListField(subfield=fields.StringField())
    rooms = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every import between two rooms with the table."""
        allowed = allowed_rooms(list(self.rooms), list(self.commons))
        package = str(self.package)
        broken = []
        for importer, imported, line in _imports(graph, package):
            source, target = _room(importer, package), _room(imported, package)
            if source == target or source not in allowed or target in allowed[source]:
                continue
            # The import graph files a module that does not exist under the package itself.
            named = f"{package} itself, or a module that does not exist" if imported == package else imported
            broken.append(f"{importer}:{line} imports {named}: {source} may import {_say(allowed[source])}")
        existing = {_room(module, package) for module in _own_modules(graph, package)}
        broken += [f"room {room} has no row in the table" for room in sorted(existing - allowed.keys())]
        return ContractCheck(
            kept=not broken,
            metadata={"broken": broken},
            warnings=[f"room {room} is not built yet" for room in allowed if room not in existing],
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line per import that the table does not allow."""
        _render(check)


class OutsideContract(Contract):
    """Which parts of the package may import which modules from outside it.

    Options:
        package: the package that is checked.
        only: rows ``"outside: part part"``: these parts alone import it; an empty list means nobody does.
        never: rows ``"part: outside outside"``: this part imports none of them.
        A part is a module or package below `package`, such as ``transport`` or ``engine.host``.
    """

    type_name = "outside"

    package = fields.StringField()
    only = fields.ListField(subfield=fields.StringField())
    never = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every import of an outside module with the two lists."""
        package = str(self.package)
        owners, banned = table(list(self.only)), table(list(self.never))
        broken = []
        for importer, imported, line in _imports(graph, package, outside=True):
            top = imported.partition(".")[0]
            place = importer.removeprefix(package + ".")
            if top in owners and not any(_within(place, part) for part in owners[top]):
                broken.append(f"{importer}:{line} imports {imported}: only {_say(owners[top])} may")
            broken += [
                f"{importer}:{line} imports {imported}: {part} is free of it"
                for part, names in banned.items()
                if top in names and _within(place, part)
            ]
        modules = _own_modules(graph, package)
        parts = [*banned, *(part for row in owners.values() for part in row)]
        absent = [part for part in dict.fromkeys(parts) if f"{package}.{part}" not in modules]
        return ContractCheck(
            kept=not broken,
            metadata={"broken": sorted(broken)},
            warnings=[f"{part} is not built yet" for part in absent],
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line per import that is not allowed."""
        _render(check)


def table(rows: list[str]) -> dict[str, list[str]]:
    """Read rows of the form ``"key: word word"``."""
    return {key.strip(): words.split() for key, _, words in (row.partition(":") for row in rows)}


def allowed_rooms(rows: list[str], commons: list[str]) -> dict[str, set[str]]:
    """Room -> the rooms that it may import, with the commons and ``*`` written out."""
    raw = table(rows)
    allowed = {}
    for room, words in raw.items():
        named = {word for word in words if word[0] not in "*-"}
        everything = set(raw) if _ANYTHING in words else set()
        shared = set() if room in commons else set(commons)
        allowed[room] = (named | everything | shared) - {word[1:] for word in words if word[0] == "-"} - {room}
    return allowed


def _imports(graph: ImportGraph, package: str, outside: bool = False) -> Iterator[tuple[str, str, int]]:
    """Every (importer, imported, line) from inside the package to inside it, or to outside it."""
    own = _own_modules(graph, package)
    for importer in sorted(own):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            if (imported in own) != outside:
                for detail in graph.get_import_details(importer=importer, imported=imported):
                    yield importer, imported, detail["line_number"]


def _own_modules(graph: ImportGraph, package: str) -> set[str]:
    return {package} | graph.find_descendants(package)


def _room(module: str, package: str) -> str:
    """``muro.wire.codec`` -> ``wire``; the package itself -> its own name."""
    return module.split(".")[1] if module != package else package


def _within(place: str, part: str) -> bool:
    return place == part or place.startswith(part + ".")


def _say(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _render(check: ContractCheck) -> None:
    for line in check.metadata["broken"]:
        output.print_error(line)
