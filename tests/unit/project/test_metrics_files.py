"""The dashboard, the alert rules and the guide name exactly the metrics that are exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.metrics.catalog import CATALOG, OUTCOMES
from tests.unit.project.promql import DURATION, find_fault

DOCS = Path(__file__).parents[3] / "docs"
DASHBOARD = json.loads((DOCS / "deploy" / "grafana.json").read_text())
ALERTS = yaml.safe_load((DOCS / "deploy" / "alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
SAMPLES = {name: metric for metric in CATALOG.values() for name in metric.sample_names}
AUTOMATIC = {"le", "job", "instance"}  # labels that Prometheus adds


def targets() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target


EXPRESSIONS = [*(target["expr"] for _, target in targets()), *(rule["expr"] for rule in RULES)]


def test_every_name_in_an_expression_is_exported() -> None:
    for expression in EXPRESSIONS:
        named = set(re.findall(r"\bruns_\w+", expression))
        assert named, expression
        assert named <= set(SAMPLES), expression


def test_labels_in_an_expression_belong_to_their_metric() -> None:
    for expression in EXPRESSIONS:
        for name, selector in re.findall(r"\b(runs_\w+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert labels <= {*SAMPLES[name].labels, *AUTOMATIC}, expression
        grouped = {label for found in re.findall(r"\bby \(([^)]*)\)", expression) for label in found.split(", ")}
        known = {label for name in re.findall(r"\bruns_\w+", expression) for label in SAMPLES[name].labels}
        assert grouped <= known | AUTOMATIC, expression
        for outcomes in re.findall(r'outcome=~?"([^"]*)"', expression):
            assert set(outcomes.split("|")) <= set(OUTCOMES)


def test_dashboard_shows_every_metric() -> None:
    shown = {name for _, target in targets() for name in re.findall(r"\bruns_\w+", target["expr"])}
    missing = {metric.name for metric in CATALOG.values() if not shown & set(metric.sample_names)}
    assert missing <= {"runs_server_up"}


def test_dashboard_takes_its_data_source_from_a_variable() -> None:
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    for title, target in targets():
        assert target["datasource"]["uid"] == "${datasource}", title
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_counters_are_used_with_rate_or_increase() -> None:
    counters = {name for name, metric in SAMPLES.items() if metric.type != "gauge"}
    for expression in EXPRESSIONS:
        for name in counters & set(re.findall(r"\bruns_\w+", expression)):
            assert re.search(rf"\b(?:rate|increase)\({name}\b", expression), expression


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 10
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_every_expression_is_well_formed() -> None:
    for expression in EXPRESSIONS:
        assert find_fault(expression) == "", expression


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("sum(rate(runs_attempts_total[5m])", "a bracket is not closed"),
        ("sum(runs_slots))", "a bracket does not match"),
        ("sum(runs_slots]", "a bracket does not match"),
        ("summ(runs_slots)", "summ is not a function"),
        ("rate(runs_attempts_total[5x])", "5x is not a duration"),
        ("sum(runs_slots) >", "an operand is missing"),
        ("sum(runs_slots) / / 2", "an operand is missing"),
        ("sum(runs_slots) 2", "an operator is missing"),
        ('runs_attempts_total{kind="a}', "it has an unknown character"),
        ("runs_slots{kind=a}", "a selector is not valid"),
        ("runs_slots ; 1", "it has an unknown character"),
    ],
)
def test_check_of_expressions_finds_faults(expression: str, fault: str) -> None:
    assert find_fault(expression) == fault


def test_rules_have_the_fields_of_prometheus() -> None:
    """Check the rules as promtool does, and with promtool if it is installed."""
    for rule in RULES:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(DURATION, rule.get("for", "1m")), rule["alert"]
        for text in rule["annotations"].values():
            for template in re.findall(r"\{\{(.*?)\}\}", text):
                assert re.fullmatch(r" \$(value|labels\.(\w+))( \| humanize(Duration|Percentage)?)? ", template), (
                    template
                )
            named = set(re.findall(r"\$labels\.(\w+)", text))
            known = {label for name in re.findall(r"\bruns_\w+", rule["expr"]) for label in SAMPLES[name].labels}
            assert named <= known | AUTOMATIC, rule["alert"]
    if promtool := shutil.which("promtool"):
        done = subprocess.run(
            [promtool, "check", "rules", DOCS / "deploy" / "alerts.yaml"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("heading", "sources"), [("By worker processes", ("workers", "both")), ("By coordinators", ("coordinator", "both"))]
)
def test_guide_lists_every_metric(heading: str, sources: tuple[str, ...]) -> None:
    section = (DOCS / "guides" / "metrics.md").read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    expected = [
        (one.name, one.type, ", ".join(f"`{label}`" for label in one.labels) or "-", one.help)
        for one in CATALOG.values()
        if one.source in sources
    ]
    assert rows == expected
