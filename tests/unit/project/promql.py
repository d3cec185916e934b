"""A check of the form of PromQL expressions, for the part of the language that the dashboard and the alert rules use."""

from __future__ import annotations

import re

DURATION = r"(?:\d+(?:ms|s|m|h|d|w|y))+"
_AGGREGATIONS = {"sum", "max", "min", "avg", "count", "topk"}
_FUNCTIONS = {"rate", "increase", "histogram_quantile", "clamp_min", "clamp_max", "absent", "vector", "time", "abs"}
_WORD_OPERATORS = {"and", "or", "unless"}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<selector>\{[^{}"]*(?:"[^"]*"[^{}"]*)*\}) | (?P<range>\[[^\[\]]*\]) | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
    | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*) | (?P<operator>==|!=|>=|<=|[-+*/%^<>]) | (?P<open>\() | (?P<close>[)\]]) | (?P<comma>,)
    )""",
    re.VERBOSE,
)
_MATCHER = r"\s*\w+\s*(?:=~|!~|!=|=)\s*\"[^\"]*\"\s*"


def find_fault(expression: str) -> str:
    """Return what is wrong with an expression; empty if nothing is found."""
    text = re.sub(r"\b(?:by|without|on|ignoring) \([\w, ]*\)", " ", expression).replace("$__rate_interval", "5m")
    depth, place, wants_operand = 0, 0, True
    called = False  # whether the last token is the name of a function
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None:
            return "it has an unknown character"
        place, kind, token = found.end(), found.lastgroup or "", found[found.lastgroup or 0]
        if called and kind != "open":
            return "the arguments of a function are missing"
        called = False
        match kind:
            case "selector" if not re.fullmatch(r"\{(?:" + _MATCHER + r"(?:,(?=[^}])" + _MATCHER + r")*)?\}", token):
                return "a selector is not valid"
            case "range" if not re.fullmatch(DURATION, token[1:-1]):
                return f"{token[1:-1]} is not a duration"
            case "selector" | "range" if wants_operand:
                return "an operand is missing"
            case "name" if token in _WORD_OPERATORS:
                if wants_operand:
                    return "an operand is missing"
                wants_operand = True
            case "name" | "number" | "open" if not wants_operand:
                return "an operator is missing"
            case "name" if text[place:].lstrip().startswith("("):
                if token not in _FUNCTIONS | _AGGREGATIONS:
                    return f"{token} is not a function"
                called = True
            case "name" | "number":
                wants_operand = False
            case "open":
                depth += 1
            case "operator" | "comma":
                if wants_operand or (kind == "comma" and not depth):
                    return "an operand is missing"
                wants_operand = True
            case _:  # a bracket that closes
                if kind != "close":
                    continue
                depth -= 1
                if depth < 0 or token == "]":
                    return "a bracket does not match"
                if wants_operand:
                    return "an operand is missing"
    return "a bracket is not closed" if depth else "an operand is missing" if wants_operand else ""
