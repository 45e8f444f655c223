"""Grammars that mean harm: deep, huge, recursive, dear to compile or to follow."""

from __future__ import annotations

from typing import Any


def _nested(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth


def _chain(length: int) -> dict[str, Any]:
    links: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)
    }
    return {"$defs": {**links, f"d{length}": {}}, "$ref": "#/$defs/d0"}


def _tree(depth: int) -> dict[str, Any]:
    """Each level refers twice to the next one."""
    levels: dict[str, Any] = {
        f"l{i + 1}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/l{i}"}}, {"$ref": f"#/$defs/l{i}"}]}
        for i in range(depth)
    }
    return {"$defs": {"l0": {"type": "string"}, **levels}, "$ref": f"#/$defs/l{depth}"}


_NODE = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}

HOSTILE: dict[str, dict[str, Any]] = {
    "a deep schema": {"json": _nested(60)},
    "a very deep schema": {"json": _nested(20_000)},
    "a chain of 900 references": {"json": _chain(900)},
    "a tree of references": {"json": _tree(24)},
    "a schema that only refers to itself": {"json": {"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}},
    "a schema without end": {"json": {"$defs": {"n": _NODE}, "$ref": "#/$defs/n"}},
    "a huge schema": {"json": {"enum": [f"value {i}" for i in range(50_000)]}},
    "a large schema": {"json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2_000)}}},
    "products of alternatives": {
        "json": {
            "type": "object",
            "allOf": [
                {
                    "oneOf": [
                        {"required": [f"p{i}"], "properties": {f"p{i}": {"type": t}}} for t in ("integer", "string")
                    ]
                }
                for i in range(14)
            ],
        }
    },
    "intersections of patterns in a schema": {"json": {"allOf": [{"pattern": f"x{i}"} for i in range(8)]}},
    "a remote reference": {"json": {"$ref": "http://127.0.0.1:9/schema"}},
    "a file": {"json": {"$ref": "file:///etc/passwd"}},
    "catastrophic repetition": {"regex": "((a+)+)+b"},
    "many stars": {"regex": "a*" * 8_000},
    "repetitions of repetitions": {"regex": "((a{1,999}){1,999}){1,999}"},
    "a million times": {"regex": "x{1000000}"},
    "a memory of forty characters": {"regex": "(.*a.{40}b)"},
    "deep groups": {"regex": "(" * 8_000 + "a" + ")" * 8_000},
    "eight intersections": {"grammar": "start: A\nA: " + " & ".join(f"/.*x{i}.*/" for i in range(8))},
    "intersections": {"grammar": "start: A\nA: " + " & ".join(f"/.*x{i}.*/" for i in range(32))},
    "an ambiguous grammar": {"grammar": 'start: s\ns: s s s | "a" | '},
    "deep rules": {"grammar": "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(900)) + 'r900: "a"'},
    "rules that only call each other": {"grammar": "start: a\na: b\nb: a"},
    "wide rules": {"grammar": "start: " + "|".join(f'"k{i}" start' for i in range(1_000))},
    "thousands of choices": {"choice": [f"choice number {i}" for i in range(4_096)]},
}
