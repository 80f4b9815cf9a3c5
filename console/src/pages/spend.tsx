// What was used and spent: by key, tenant, user or model, over time, and what the month will come to.
import { useQuery as useAsk } from '@tanstack/react-query';
import { useState } from 'react';
import { get } from '../api/client';
import type { UsageReport, UsageRow } from '../api/types';
import { count } from '../lib/format';
import { decimalMoney, money } from '../lib/money';
import { byDay, daysBetween, forecast, totals } from '../lib/spend';
import { PALETTE } from '../ui/chart';
import { Card, Empty, Load, PageHead, Segmented } from '../ui/parts';
import { type Column, Table } from '../ui/table';
import { TimeChart } from '../ui/timechart';

const REPORT = '/admin/api/v1/rate-limits/usage/report';
const LOOK_MS = 15_000;
const MAX_ROWS = 1_000;
const MAX_DAY_ROWS = 10_000;

const GROUPS = [
  { value: 'key', name: 'Key', column: 'api_key_id' },
  { value: 'tenant', name: 'Tenant', column: 'tenant_id' },
  { value: 'user', name: 'User', column: 'user_id' },
  { value: 'model', name: 'Model', column: 'model_id' },
] as const;
type Group = (typeof GROUPS)[number]['value'];

const RANGES = [
  { value: 'month', name: 'This month' },
  { value: '7d', name: '7 days' },
  { value: '30d', name: '30 days' },
  { value: '90d', name: '90 days' },
] as const;
type Span = (typeof RANGES)[number]['value'];

function useReport(groupBy: string, span: Span, limit: number) {
  const from = span === 'month' ? undefined : span;
  return useAsk({
    queryKey: ['spend', groupBy, span],
    queryFn: ({ signal }) => get<UsageReport>('usage/report', { group_by: groupBy, from, limit }, signal),
    refetchInterval: LOOK_MS,
  });
}

export default function Spend() {
  const [group, setGroup] = useState<Group>('key');
  const [span, setSpan] = useState<Span>('month');
  const rows = useReport(group, span, MAX_ROWS);
  const days = useReport('day', span, MAX_DAY_ROWS);
  return (
    <>
      <PageHead title="Spend" about="What settled requests used and cost. Days are those of UTC.">
        <Segmented label="Time" value={span} options={RANGES} onChange={setSpan} />
      </PageHead>
      <Load query={days}>{(report) => <InAll report={report} month={span === 'month' ? days.dataUpdatedAt : null} />}</Load>
      <Card
        className="flush"
        title="Who spends it"
        actions={
          <>
            <Segmented label="Group by" value={group} options={GROUPS} onChange={setGroup} />
            <Download group={group} span={span} format="csv" name="CSV" />
            <Download group={group} span={span} format="focus" name="FOCUS" />
          </>
        }
      >
        <Load query={rows}>{(report) => <Spenders report={report} group={group} />}</Load>
      </Card>
    </>
  );
}

function Download({ group, span, format, name }: { group: Group; span: Span; format: string; name: string }) {
  const query = new URLSearchParams({ format, ...(format === 'csv' ? { group_by: `day,${group}` } : {}), ...(span === 'month' ? {} : { from: span }) });
  return <a className="link" href={`${REPORT}?${query.toString()}`} download="usage.csv">{name}</a>;
}

/** `month`: when the report of the current month was made, to forecast its end. */
function InAll({ report, month }: { report: UsageReport; month: number | null }) {
  const sums = totals(report.items);
  const currencies = [...sums.money.keys()].sort();
  const days = daysBetween(report.from, report.until);
  const series = currencies.map((currency, place) => ({
    name: currency,
    color: PALETTE[place % PALETTE.length] ?? '--series-1',
    values: byDay(report.items, currency, days),
    fill: currencies.length === 1,
  }));
  return (
    <>
      <dl className="figures">
        {currencies.map((currency) => <Spent key={currency} currency={currency} nanos={sums.money.get(currency) ?? 0} month={month} />)}
        <div><dt>Requests</dt><dd>{count(sums.requests)}</dd></div>
        <div><dt>Tokens</dt><dd>{count(sums.tokens)}</dd></div>
        <div><dt>Refused</dt><dd>{count(sums.refusals)}</dd></div>
      </dl>
      {series.length > 0 && days.length > 1 && (
        <Card title="By day">
          <TimeChart label="Money that was spent on each day" times={days.map((day) => day / 1000)} series={series} format={(nanos) => money(nanos)} scale="full" onScale={() => undefined} />
        </Card>
      )}
    </>
  );
}

function Spent({ currency, nanos, month }: { currency: string; nanos: number; month: number | null }) {
  const expected = month === null ? null : forecast(nanos, month);
  return (
    <div>
      <dt>Spent</dt>
      <dd>{money(nanos, currency)} {expected !== null && <small className="muted">about {money(Math.round(expected), currency)} by the end of the month</small>}</dd>
    </div>
  );
}

function Spenders({ report, group }: { report: UsageReport; group: Group }) {
  const { name, column } = GROUPS.find(({ value }) => value === group) ?? GROUPS[0];
  const columns: Column<UsageRow>[] = [
    { name, cell: (row) => row[column] ?? <span className="muted">none</span> },
    { name: 'Requests', align: 'right', cell: (row) => count(row.requests) },
    { name: 'Refused', align: 'right', minor: true, cell: (row) => count(row.refusals) },
    { name: 'Input', align: 'right', minor: true, cell: (row) => count(row.input_tokens) },
    { name: 'Output', align: 'right', minor: true, cell: (row) => count(row.output_tokens) },
    { name: 'Tokens', align: 'right', cell: (row) => count(row.tokens) },
    { name: 'Money', align: 'right', cell: (row) => (row.money === null ? <span className="muted">no price</span> : decimalMoney(row.money, row.currency)) },
  ];
  if (report.items.length === 0) {
    return <Empty icon="search" title="Nothing was used in this time">Requests appear here when they are settled: those of model routes, and reservations.</Empty>;
  }
  return (
    <>
      <Table label={`Spend by ${name.toLowerCase()}`} columns={columns} rows={report.items} id={(row) => `${row[column] ?? ''} ${row.currency ?? ''}`} />
      {report.truncated && <p className="note">These are the first {MAX_ROWS} rows, the dearest first.</p>}
    </>
  );
}
