// Tables: short ones as they are, long ones with only those rows in the page that can be seen.
import { type ReactNode, useEffect, useLayoutEffect, useRef, useState } from 'react';
import { nextOrder, type Order, sorted } from '../lib/sort';
import { visible } from '../lib/virtual';

export interface Column<T> {
  name: string;
  /** Shown to screen readers only. */
  hidden?: boolean;
  align?: 'right';
  width?: string;
  /** Left out where there is little room. */
  minor?: boolean;
  /** Holds two buttons. */
  pair?: boolean;
  cell: (row: T) => ReactNode;
  /** What its rows can be sorted by; figures begin with the highest. */
  sort?: (row: T) => string | number;
}

/** The order that is shown, by the name of a column, and what a click on a column does. */
export interface Sorting {
  order: Order | null;
  onSort: (order: string | null) => void;
}

const ROW_HEIGHT = 44;
/** Longer lists are shown in part. */
const MAX_ROWS = 60;

function Head<T>({ columns, sorting }: { columns: Column<T>[]; sorting?: Sorting | undefined }) {
  return (
    <thead>
      <tr>
        {columns.map(({ name, hidden, align, width, minor, pair, sort }) => {
          const order = sorting?.order?.by === columnKey(name) ? sorting.order : null;
          return (
            <th key={name} scope="col" className={classes(align, minor, pair)} style={width ? { width } : undefined} aria-sort={order ? (order.isDescending ? 'descending' : 'ascending') : undefined}>
              {hidden ? <span className="sr-only">{name}</span> : sort && sorting ? (
                <button type="button" className="sort" onClick={() => sorting.onSort(nextOrder(sorting.order, columnKey(name), align === 'right'))}>
                  {name}
                  <span aria-hidden="true">{order ? (order.isDescending ? '↓' : '↑') : '↕'}</span>
                </button>
              ) : name}
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

/** A column as the address names it. */
function columnKey(name: string): string {
  return name.toLowerCase();
}

/** Rows in the order that is shown; in their own if there is none. */
export function inOrder<T>(rows: T[], columns: Column<T>[], order: Order | null): T[] {
  const key = order && columns.find(({ name, sort }) => sort && columnKey(name) === order.by)?.sort;
  return key ? sorted(rows, key, order.isDescending) : rows;
}

function classes(align?: string, minor?: boolean, pair?: boolean): string {
  return [align ?? '', minor ? 'minor' : '', pair ? 'pair' : ''].join(' ').trim();
}

export function Table<T>({
  label,
  columns,
  rows,
  id,
  fixed = false,
  sorting,
}: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  fixed?: boolean;
  sorting?: Sorting;
}) {
  const isLong = rows.length > MAX_ROWS;
  if (isLong) return <LongTable label={label} columns={columns} rows={rows} id={id} sorting={sorting} />;
  return (
    // A table that is wider than the page scrolls by itself, also by keyboard.
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div className="table-box" role="region" aria-label={label} tabIndex={0}>
      <table className={fixed ? 'fixed' : ''}>
        <Head columns={columns} sorting={sorting} />
        <tbody>
          {rows.map((row) => (
            <Row key={id(row)} row={row} columns={columns} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row<T>({ row, columns, index }: { row: T; columns: Column<T>[]; index?: number }) {
  return (
    <tr aria-rowindex={index === undefined ? undefined : index + 2}>
      {columns.map(({ name, align, minor, cell }) => (
        <td key={name} className={classes(align, minor)}>
          {cell(row)}
        </td>
      ))}
    </tr>
  );
}

function LongTable<T>({ label, columns, rows, id, sorting }: { label: string; columns: Column<T>[]; rows: T[]; id: (row: T) => string; sorting: Sorting | undefined }) {
  const box = useRef<HTMLDivElement>(null);
  const [{ scroll, height }, setPlace] = useState({ scroll: 0, height: 600 });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = () => setPlace({ scroll: element.scrollTop, height: element.clientHeight });
    look();
    const watch = new ResizeObserver(look);
    watch.observe(element);
    element.addEventListener('scroll', look, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener('scroll', look);
    };
  }, []);
  useEffect(() => {
    if (box.current && box.current.scrollTop > rows.length * ROW_HEIGHT) box.current.scrollTop = 0;
  }, [rows.length]);
  const { first, last } = visible(scroll, height, ROW_HEIGHT, rows.length);
  const space = (count: number) =>
    count > 0 && (
      <tr aria-hidden="true" className="space">
        <td style={{ height: count * ROW_HEIGHT }} />
      </tr>
    );
  return (
    // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
    <div ref={box} className="table-box long" role="region" aria-label={label} tabIndex={0}>
      <table className="fixed" aria-rowcount={rows.length + 1}>
        <Head columns={columns} sorting={sorting} />
        <tbody>
          {space(first)}
          {rows.slice(first, last).map((row, offset) => (
            <Row key={id(row)} row={row} columns={columns} index={first + offset} />
          ))}
          {space(rows.length - last)}
        </tbody>
      </table>
    </div>
  );
}
