"""Panels and dashboards as Grafana has them: built with its own SDK, written as its JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from boards.parts import Board, Panel

Chart: TypeAlias = stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel

SOURCE = kinds.DataSourceRef(type_val="prometheus", uid="prometheus")
"""The one that deploy/grafana/provisioning/datasources sets up."""

_UP = models.ValueMap(
    {
        "0": models.ValueMappingResult(text="down", color="red"),
        "1": models.ValueMappingResult(text="up", color="green"),
    }
)


_OF_INTERVALS = {"auto", "auto_count", "auto_min"}
"""The SDK gives these to every variable; Grafana's schema refuses them."""


def text(board: Board) -> str:
    """The dashboard's file. The same board gives the same bytes."""
    written = json.loads(json.dumps(_dashboard(board).build(), cls=JSONEncoder))
    return json.dumps(_cleaned(written), indent=2) + "\n"


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    """What is not set is not there: the schema knows no null, but for the lowest threshold,
    which has no bound below it.
    """
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    if not isinstance(value, dict):
        return value
    threshold = value.keys() == {"value", "color"}
    return {
        name: _cleaned(one)
        for name, one in value.items()
        if name not in _OF_INTERVALS and (threshold or one is not None)
    }


def _dashboard(board: Board) -> dashboard.Dashboard:
    drawn = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags(["gradwire"])
        .readonly()
        .version(1)
        .refresh("5s")
        .time("now-15m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_others())
        .with_variable(_daemons())
    )
    for number, panel in enumerate(board.panels, start=1):
        drawn.with_panel(_panel(panel).id(number))
    return drawn


def _others() -> dashboard.DashboardLink:
    """The way to the other dashboards, with the same daemons and times."""
    link = dashboard.DashboardLink("Gradwire").type(models.DashboardLinkType.DASHBOARDS)
    return link.tags(["gradwire"]).keep_time(True).include_vars(True)


def _daemons() -> dashboard.QueryVariable:
    """Which daemons it is about; all, unless somebody chooses."""
    return (
        dashboard.QueryVariable("instance")
        .label("Daemon")
        .datasource(SOURCE)
        .query({"query": "label_values(gradwire_build_info, instance)", "refId": "instance"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )


def _panel(panel: Panel) -> Chart:
    drawn = _chart(panel)
    drawn.title(panel.title).description(panel.description).unit(panel.unit)
    drawn.datasource(SOURCE).height(panel.height).span(panel.width)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().datasource(SOURCE).ref_id(letter)
        target.expr(query.expression).legend_format(query.legend)
        if panel.kind in ("matrix", "table"):
            target.instant().format(PromQueryFormat.TABLE)
        else:
            target.range()
        drawn.with_target(target)
    return drawn


def _chart(panel: Panel) -> Chart:
    match panel.kind:
        case "figure":
            return _figure(panel)
        case "lines" | "area":
            return _lines(panel)
        case "matrix":
            return _matrix(panel)
        case "states":
            return statetimeline.Panel().mappings([_UP]).show_value(kinds.VisibilityMode.NEVER)
        case "table":
            hidden = models.DynamicConfigValue("custom.hidden", value=True)
            uptime = models.DynamicConfigValue("displayName", value="Up for")
            drawn = table.Panel().override_by_name("Time", [hidden])
            return drawn.override_by_name("Value", [uptime])
        case _:
            assert_never(panel.kind)


def _figure(panel: Panel) -> stat.Panel:
    drawn = stat.Panel().min(0).graph_mode(kinds.BigValueGraphMode.AREA)
    drawn.color_mode(kinds.BigValueColorMode.VALUE)
    drawn.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if panel.alarm is not None:
        steps = [models.Threshold(None, "green"), models.Threshold(panel.alarm, "red")]
        bounds = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
        drawn.thresholds(bounds.steps(steps))
        drawn.color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    return drawn


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True)
    legend.display_mode(kinds.LegendDisplayMode.LIST).placement(kinds.LegendPlacement.BOTTOM)
    hint = common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI)
    drawn = timeseries.Panel().min(0).legend(legend)
    drawn.tooltip(hint.sort(kinds.SortOrder.DESCENDING))
    if panel.most is not None:
        drawn.max(panel.most)
    if panel.kind == "area":
        pile = common.StackingConfig().mode(kinds.StackingMode.NORMAL).group("A")
        drawn.stacking(pile).fill_opacity(60).line_width(0)
    return drawn


def _matrix(panel: Panel) -> table.Panel:
    """A row for each daemon, a column for each peer, the colour by the value."""
    colours = models.FieldColorModeId.CONTINUOUS_GR_YL_RD
    if panel.more_is_better:
        colours = models.FieldColorModeId.CONTINUOUS_RD_YL_GR
    filled = {"type": "color-background", "mode": "basic"}
    options = {"rowField": "instance", "columnField": "peer", "valueField": "Value"}
    drawn = table.Panel().min(0).color_scheme(dashboard.FieldColor().mode(colours))
    # Not the first column: that has the rows' names.
    cells = models.DynamicConfigValue("custom.cellOptions", value=filled)
    drawn.override_by_field_type("number", [cells])
    turned = models.DataTransformerConfig("groupingToMatrix", options=options)
    return drawn.with_transformation(turned)
