"""The dashboard for Grafana, from one list of panels: `python -m deploy.monitoring.dashboard` writes it into the chart.

Four questions, top to bottom: is it the proxy, or the brokers; who is throttled, by which limit; who uses what; how is
the proxy itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, DynamicConfigValue, VariableRefresh

PREFIX: Final = "kafka_quota_proxy_"
FILE: Final = Path(__file__).parents[1] / "helm/kafka-quota-proxy/files/dashboard.json"
#: Of the states in which connections are: told apart by colour-blind people, too, on a light and on a dark ground.
COLOURS: Final = {
    "limit": "#e68a08",
    "broker": "#1d56ed",
    "broker_quota": "#9397b7",
    "proxy": "#873ba0",
    "slow_reader": "#1fa1ff",
    "data": "#426a24",
    "client": "#a2a288",
}
#: Instances that the reader chose above the panels.
CHOSEN: Final = 'job=~"$job",instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Panel:
    """A title, PromQL with the names of series, and the unit by Grafana's name. `#` is the prefix of all metrics."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str
    text: str

    def expressions(self, chosen: str = CHOSEN) -> list[str]:
        """The queries, for these instances."""
        return [query.replace("#", PREFIX).replace("@", chosen) for query, _ in self.queries]


ROWS: Final = (
    (
        "Is it the proxy?",
        (
            Panel(
                "Where the time of clients goes",
                (
                    (
                        "sum by (state) (rate(#connection_seconds_total{@}[1m]))"
                        " / scalar(sum(rate(#connection_seconds_total{@}[1m])))",
                        "{{state}}",
                    ),
                ),
                "percentunit", "limit: this proxy holds them; broker: they wait for it; client: neither.",
            ),
            Panel(
                "Errors of brokers",
                (("sum by (reason) (rate(#upstream_errors_total{@}[1m]))", "{{reason}}"),),
                "cps", "Connections to a broker that failed.",
            ),
            Panel(
                "Brokers' time to respond, 99 %",
                (
                    (
                        "histogram_quantile(0.99, sum by (le, broker) (rate(#broker_response_seconds_bucket{@}[1m])))",
                        "{{broker}}",
                    ),
                ),
                "s", "From the end of a request to its response, without fetches.",
            ),
        ),
    ),
    (
        "Who is throttled",
        (
            Panel(
                "Time throttled",
                (
                    (
                        "topk(20, sum by (client_id, limit) (rate(#throttle_seconds_sum{@}[1m])))",
                        "{{client_id}}, {{limit}}",
                    ),
                ),
                "percentunit", "Above 100 %: several connections wait at a time.",
            ),
            Panel(
                "Throttle time, 99 %",
                (
                    (
                        "histogram_quantile(0.99, sum by (le, limit) (rate(#throttle_seconds_bucket{@}[1m])))",
                        "{{limit}}",
                    ),
                ),
                "s", "Of throttled requests.",
            ),
            Panel(
                "Used part of limits",
                (("topk(20, max by (entity, limit) (#quota_used_ratio{@}))", "{{entity}} {{limit}}"),),
                "percentunit", "Rate of the last ten seconds, as a share of the limit.",
            ),
            Panel(
                "Debt",
                (("topk(20, max by (entity, limit) (#quota_debt_seconds{@}))", "{{entity}} {{limit}}"),),
                "s", "How long a limit takes to pay off its debt.",
            ),
            Panel(
                "Refused and closed connections",
                (
                    ("sum by (reason) (rate(#connections_rejected_total{@}[1m]))", "refused {{reason}}"),
                    ("sum by (reason) (rate(#connections_closed_total{@}[1m]))", "closed {{reason}}"),
                ),
                "cps", "By reason.",
            ),
            Panel(
                "Limits in use",
                (("sum by (limit, entity) (#quota_limit{@})", "{{limit}} {{entity}}"),),
                "short", "What each limit allows in a second, over all chosen proxies.",
            ),
            Panel(
                "Groups that yield",
                (("min by (entity, mode) (#moving_rate{@})", "{{entity}} {{mode}}"),),
                "Bps", "The rate that the clients before them leave; observe: it is not set.",
            ),
            Panel(
                "Time in which others are too slow",
                (("sum by (entity) (rate(#protected_slow_seconds_total{@}[1m]))", "{{entity}}"),),
                "percentunit", "Of the clients that these groups yield to: responses above the target.",
            ),
        ),
    ),
    (
        "Who uses what",
        (
            Panel(
                "Bytes by client",
                (
                    (
                        "topk(9, sum by (client_id, direction) (rate(#bytes_total{@}[1m])))",
                        "{{direction}} {{client_id}}",
                    ),
                ),
                "Bps", "Charged to quotas; the nine largest.",
            ),
            Panel(
                "Requests by API",
                (("topk(10, sum by (api) (rate(#requests_total{@}[1m])))", "{{api}}"),),
                "reqps", "The ten most frequent.",
            ),
        ),
    ),
    (
        "The proxy itself",
        (
            Panel(
                "CPU and lag of the loop",
                (
                    ("sum by (instance) (rate(process_cpu_seconds_total{@}[1m]))", "CPU {{instance}}"),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(#event_loop_lag_seconds_bucket{@}[1m])))",
                        "lag, 99 %, in seconds",
                    ),
                ),
                "short", "One core is the most that a process can use.",
            ),
            Panel(
                "Memory",
                (
                    ("sum by (instance) (process_resident_memory_bytes{@})", "resident {{instance}}"),
                    ("sum by (instance) (#buffered_bytes{@})", "buffered {{instance}}"),
                ),
                "bytes", "Buffered bytes are bounded by --max-buffered-bytes: State has the part in use.",
            ),
            Panel(
                "Connections that are not read",
                (("sum by (reason) (#paused_connections{@})", "{{reason}}"),),
                "short", "quota, delay: a limit; write_backpressure, in_flight: the broker; memory: the bound.",
            ),
            Panel(
                "In flight",
                (("sum(#in_flight_requests{@})", "requests"), ("sum(#connections{@})", "connections")),
                "short", "Requests that the brokers have not answered: many, and no limit holds, is the broker.",
            ),
            Panel(
                "State",
                (
                    ("min(#enforcement_enabled{@})", "enforced"),
                    ("min(#config_last_reload_successful{@})", "files applied"),
                    ("max(#memory_used_ratio{@})", "memory, part of its bound"),
                ),
                "short", "Of all chosen proxies: 1 is yes; memory is the fullest's.",
            ),
            Panel(
                "Disks of brokers",
                (
                    ("topk(9, max by (broker, directory) (#disk_used_ratio{@}))", "broker {{broker}} {{directory}}"),
                    ("min(#disk_guard_factor{@})", "factor for producers"),
                ),
                "percentunit", "With --disk-guard: used shares; the factor falls to 0 between the marks.",
            ),
            Panel(
                "Fleet",
                (
                    ("max(#fleet_members{@})", "members"),
                    ("min(#fleet_joined{@})", "joined: 1 is yes"),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(#fleet_delivery_seconds_bucket{@}[1m])))",
                        "a record until it is read, 99 %, in seconds",
                    ),
                ),
                "short", "One that has not joined has its fallback.",
            ),
            Panel(
                "Parts of shared limits",
                (
                    (
                        "#quota_limit{@} and on (job, instance, limit, entity) #fleet_quota{@}",
                        "{{instance}} {{entity}}",
                    ),
                    ("max by (limit, entity) (#fleet_quota{@})", "all: {{limit}} {{entity}}"),
                ),
                "short", "What each proxy of a fleet may use now, in a second; all together at most the limit.",
            ),
        ),
    ),
)  # fmt: skip


def panels() -> list[Panel]:
    """All of them, in order."""
    return [panel for _, row in ROWS for panel in row]


def dashboard() -> str:
    """The dashboard as JSON."""
    source = DataSourceRef(type_val="prometheus", uid="$datasource")
    built = (
        Dashboard("Kafka quota proxy").uid("kafka-quota-proxy").tags(["kafka"]).refresh("30s").time("now-1h", "now")
        .editable().with_variable(DatasourceVariable("datasource").type("prometheus"))
    )  # fmt: skip
    for name, of in (("job", f"{PREFIX}build_info"), ("instance", f'{PREFIX}build_info{{job=~"$job"}}')):
        variable = QueryVariable(name).datasource(source).query(f"label_values({of}, {name})").multi(True)
        built = built.with_variable(
            variable.include_all(True).all_value(".*").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    for title, row in ROWS:
        built = built.with_row(Row(title))
        for panel in row:
            series = TimeSeries().title(panel.title).description(panel.text).unit(panel.unit).datasource(source)
            # A broker that answers nothing has no time to respond: a gap, and no line across it.
            series = series.span(8).height(8).min(0).span_nulls(False).no_value("nothing measured").legend(
                VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
            )  # fmt: skip
            for letter, (expression, (_, name)) in enumerate(zip(panel.expressions(), panel.queries, strict=True)):
                series = series.with_target(
                    Dataquery().expr(expression).legend_format(name).ref_id("ABC"[letter]).datasource(source)
                )
            if any("{{state}}" in name for _, name in panel.queries):
                series = series.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(70)
                for state, colour in COLOURS.items():
                    fixed = DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
                    series = series.override_by_name(state, [fixed])
            built = built.with_panel(series)
    return f"{JSONEncoder(sort_keys=True, indent=2).encode(built.build())}\n"


if __name__ == "__main__":
    FILE.write_text(dashboard(), encoding="utf-8")
