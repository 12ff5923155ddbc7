"""Rules by promtool; queries of the dashboard and of the rules by a real Prometheus that scraped a throttled run."""

import json
import os
import urllib.error
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Final

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import yaml
from PIL import Image

from deploy.local.cluster import KafkaCluster
from deploy.monitoring.dashboard import COLOURS, FILE, dashboard, panels
from proxy.observability.client_times import STATES
from tests.conftest import UniqueName
from tests.deploy.operator.cache import ROOT, run, system_tool
from tests.deploy.operator.prometheus import RULES as RULES_FILE
from tests.deploy.operator.prometheus import Prometheus
from tests.docs.test_references import anchors
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics
from tests.proxy.admin.answer_page.test_colours import SIGHTS, distance

TESTS: Final = ROOT / "deploy/monitoring/rules_test.yaml"
PICTURE: Final = ROOT / "build/deploy/panels.png"
RULES: Final = [rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]]
#: Of a run in which nothing fails.
EMPTY: Final = frozenset({"Errors of brokers", "Refused and closed connections"})


def test_the_dashboard_is_what_its_source_makes() -> None:
    assert FILE.read_text() == dashboard(), "python -m deploy.monitoring.dashboard"
    shown = json.loads(FILE.read_text())
    targets = [target["expr"] for panel in shown["panels"] for target in panel.get("targets", ())]
    assert targets == [expression for panel in panels() for expression in panel.expressions()]


def test_brokers_come_first_lines_have_gaps_and_states_have_colours_that_everybody_tells_apart() -> None:
    shown = [panel for panel in json.loads(FILE.read_text())["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in shown][1:3] == ["Errors of brokers", "Brokers' time to respond, 99 %"]
    custom = [panel["fieldConfig"]["defaults"]["custom"] for panel in shown]
    assert {each["spanNulls"] for each in custom} == {False}
    overrides = shown[0]["fieldConfig"]["overrides"]
    colours = {each["matcher"]["options"]: each["properties"][0]["value"]["fixedColor"][1:] for each in overrides}
    assert set(colours) == set(STATES)
    for sight in SIGHTS:
        assert min(distance(one, other, sight) for one, other in combinations(colours.values(), 2)) >= 20


def test_each_alert_has_a_test_and_words_of_what_to_do() -> None:
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    tested = {
        each["alertname"]
        for group in yaml.safe_load(TESTS.read_text())["tests"]
        for each in group["alert_rule_test"]
        if each["exp_alerts"]
    }
    assert alerts == tested
    for rule in RULES:
        if "alert" in rule:
            path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
            assert path == "docs/alerts.md", "which the chart replaces"
            assert anchor == rule["alert"].lower()
            assert anchor in anchors(ROOT / path)


@pytest.mark.deploy
def test_the_rules_pass_and_wrong_ones_do_not(tmp_path: Path) -> None:
    promtool = system_tool("promtool")
    run(promtool, "check", "rules", RULES_FILE)
    run(promtool, "test", "rules", TESTS)
    text = RULES_FILE.read_text()
    (tmp_path / "rules.yaml").write_text(text.replace("enforcement_enabled == 0", "enforcement_enabled === 0"))
    run(promtool, "check", "rules", tmp_path / "rules.yaml", code=1)
    tests, place = TESTS.read_text(), os.path.relpath(RULES_FILE, TESTS.parent)
    (tmp_path / "rules_test.yaml").write_text(tests.replace(place, "rules.yaml"))
    (tmp_path / "rules.yaml").write_text(text)
    run(promtool, "test", "rules", tmp_path / "rules_test.yaml")
    for right, wrong in (
        ("used_ratio > 0.6", "used_ratio > 0.5"),
        ("or up == 0 and on (job, instance)", "or up == 0 and on (job)"),
        ("for: 1h", "for: 10m"),
        ("> 0.8 and", "> 0.95 and"),
        ("quota_used_ratio[5m]) > 0.9", "quota_used_ratio[5m]) > 0.8"),
        ("unless on (job, instance, limit, entity)", "and on (job, instance, limit, entity)"),
        ("max by (job, entity) (", "min by (job, entity) ("),
        ("requests_total[1h])) > 0", "requests_total[1h])) >= 0"),
        ("histogram_quantile(0.9, sum by (job, broker", "histogram_quantile(0.99, sum by (job, broker"),
    ):
        assert right in text
        (tmp_path / "rules.yaml").write_text(text.replace(right, wrong))
        run(promtool, "test", "rules", tmp_path / "rules_test.yaml", code=1)


@pytest.fixture
def scraped(kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that saw a client wait for its limit."""
    topic = unique_name("panels")
    create_topics(kafka_cluster, topic)
    yields = (
        "resource-group=backfill,client-id=backfill,producer_byte_rate=1MB..2MB,yield_to=client-id:flood,target=50ms"
    )
    quotas = "client-id=flood,producer_byte_rate=200kB", yields
    flags = ("--fleet", "panels", "--fleet-topic", unique_name("fleet"), "--disk-guard", "98%..99%")
    with (
        ProxyProcess(kafka_cluster.bootstrap_servers, *flags, quotas=quotas) as proxy,
        Prometheus(tmp_path, [proxy]) as prometheus,
        Flood(proxy.bootstrap_servers, "flood", topic),
    ):
        eventually(lambda: prometheus.rows("count_over_time(kafka_quota_proxy_connections[5m]) > 20"), 90, "scraped")
        yield prometheus


@pytest.mark.deploy
def test_every_query_finds_what_happened(scraped: Prometheus) -> None:
    prometheus = scraped
    with pytest.raises(urllib.error.HTTPError, match="400"):
        prometheus.rows("rate(kafka_quota_proxy_bytes_total[1m]")
    everywhere = 'job=~".*",instance=~".*"'
    for panel in panels():
        for expression in panel.expressions(everywhere):
            assert prometheus.rows(expression) or panel.title in EMPTY, expression
    for rule in RULES:
        if "record" in rule:
            eventually(lambda rule=rule: prometheus.rows(rule["record"]), 30, "recorded")  # type: ignore[misc]
        assert prometheus.ask("query", query=rule["expr"])["resultType"] == "vector"
    groups = prometheus.ask("rules")["groups"]
    states = {rule["name"]: (rule["health"], rule.get("state")) for group in groups for rule in group["rules"]}
    assert {health for health, _ in states.values()} == {"ok"}
    saturated = prometheus.rows("kafka_quota_proxy:throttled_seconds:rate5m")
    assert [row["metric"]["client_id"] for row in saturated] == ["flood"]
    draw(prometheus, everywhere)


def draw(prometheus: Prometheus, chosen: str) -> None:
    """One picture for each panel's queries: by matplotlib, no Grafana."""
    mpl.use("Agg")
    now = float(prometheus.ask("query", query="time()")["result"][1])
    figure, axes = plt.subplots(7, 3, figsize=(15, 23), constrained_layout=True)
    for axis, panel in zip(axes.flat, panels(), strict=False):
        for expression, (_, name) in zip(panel.expressions(chosen), panel.queries, strict=True):
            rate = expression.replace("[1m]", "[10s]")  # the run is shorter than a minute
            found = prometheus.ask("query_range", query=rate, start=str(now - 30), end=str(now), step="1")
            for row in found["result"]:
                label = name
                for key, value in row["metric"].items():
                    label = label.replace("{{" + key + "}}", value)
                points = [at - now for at, _ in row["values"]], [float(value) for _, value in row["values"]]
                axis.plot(*points, label=label, color=COLOURS.get(label))
        axis.set_title(f"{panel.title} ({panel.unit})", fontsize=10)
        axis.set_ylim(bottom=0)
        if axis.lines:
            axis.legend(fontsize=6, loc="upper left")
    for axis in axes.flat[len(panels()) :]:
        axis.remove()
    figure.suptitle(
        "The queries of the dashboard's panels, drawn by matplotlib (no Grafana): one client over its limit"
    )
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=60)
    plt.close(figure)
    with Image.open(PICTURE) as picture:
        picture.convert("RGB").quantize(256).save(PICTURE, optimize=True)
