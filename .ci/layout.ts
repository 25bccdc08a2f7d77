// What Grafana's own types say of the dashboards: `.ci/check` appends each as `... satisfies Shown;`.
import type { Dashboard, FieldConfig, FieldConfigSource, Panel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as states from '@grafana/schema/dist/types/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/types/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as lines from '@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// A dashboard as JSON has it: the values of enums, not their names.
type Plain<T> = unknown extends T
  ? T
  : T extends string
    ? `${T}`
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

// A panel of one kind. What is left out, Grafana fills in.
interface Kind<Type, Options, Custom> extends Omit<Panel, 'type' | 'options' | 'fieldConfig'> {
  type: Type;
  options?: Partial<Options>;
  fieldConfig: Omit<FieldConfigSource, 'defaults'> & {
    defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> };
  };
}

type Shown = Plain<
  Omit<Dashboard, 'panels'> & {
    panels: Array<
      | Kind<'stat', stat.Options, object>
      | Kind<'state-timeline', states.Options, states.FieldConfig>
      | Kind<'table', table.Options, table.FieldConfig>
      | Kind<'timeseries', lines.Options, lines.FieldConfig>
    >;
  }
>;

