//! The ledger of usage.

use std::collections::{BTreeMap, HashSet};

use super::batch::{Batch, Cell, Column, int, text};
use super::decisions::cut;
use super::driver::Dialect;
use super::query::{Columns, Query};
use super::search::{SEARCH, within};
use super::session::{Session, fetch_all, fetch_int};
use crate::{
    RepositoryError, UsageAmounts, UsageDimension, UsageEvent, UsageQuery, UsageRetention, UsageRow,
};

/// The most that one event adds to a figure: what counters are exact up to.
const MAX_EVENT_FIGURE: u64 = (1 << 53) - 1;

/// The most that a figure of a row reaches. Two of them can be added without an overflow.
const MAX_ROW_FIGURE: u64 = 4_000_000_000_000_000_000;

/// Figures are summed in two parts, so that no sum overflows: what is above this, and the rest.
const PART: i64 = 1_000_000_000;

/// What stands for several values, where a day has more rows than it may have.
pub(crate) const SEVERAL: &str = "(several)";

const COLUMNS: [Column; 17] = [
    int("day"),
    text("tenant_id"),
    text("api_key_id"),
    text("user_id"),
    text("model_id"),
    text("currency"),
    int("requests"),
    int("refusals"),
    int("tokens"),
    int("input_tokens"),
    int("output_tokens"),
    int("cached_read_tokens"),
    int("cached_write_tokens"),
    int("reasoning_tokens"),
    int("audio_tokens"),
    int("images"),
    int("nanos"),
];

/// What names a row: day, tenant, key, user, model, currency.
type RowKey = (i64, [String; 5]);

/// Adds events to the ledger, each once: its id and its amounts are written in the same transaction. Returns how many were
/// new.
pub(super) async fn record(
    session: &mut dyn Session,
    dialect: &Dialect,
    events: &[&UsageEvent],
    max_rows_per_day: u32,
) -> Result<u64, RepositoryError> {
    let new = insert_ids(session, dialect, events).await?;
    if new.is_empty() {
        return Ok(0);
    }
    let mut taken = HashSet::new();
    let fresh = events.iter().copied().filter(|event| {
        let id = cut(&event.event_id);
        new.contains(&*id) && taken.insert(id) && !event.is_released
    });
    let fresh: Vec<&UsageEvent> = fresh.collect();
    let days: HashSet<i64> = fresh.iter().map(|event| event.day()).collect();
    let mut rows = BTreeMap::<RowKey, UsageAmounts>::new();
    let mut counts = BTreeMap::new();
    for day in days {
        let query = Query::new("SELECT COUNT(*) FROM usage_days WHERE day = $1").bind(day);
        counts.insert(day, fetch_int(session, query).await?);
    }
    for event in &fresh {
        let count = counts.get(&event.day()).copied().unwrap_or(0);
        let key = row_key(event, Room::of(count, max_rows_per_day));
        rows.entry(key).or_default().add(&bounded(&event.amounts));
    }
    if !rows.is_empty() {
        add_rows(session, dialect, &rows).await?;
    }
    Ok(fresh.len() as u64)
}

/// Writes the ids of events, and returns those that were not there.
async fn insert_ids(
    session: &mut dyn Session,
    dialect: &Dialect,
    events: &[&UsageEvent],
) -> Result<HashSet<String>, RepositoryError> {
    if events.is_empty() {
        return Ok(HashSet::new());
    }
    let now = fetch_int(session, Query::new(dialect.now)).await?;
    let mut ids = Batch::new();
    for event in events {
        ids.row(&[(&*cut(&event.event_id)).into(), now.into()])?;
    }
    let columns = [text("event_id"), int("recorded_at")];
    let conflict = "ON CONFLICT (event_id) DO NOTHING RETURNING event_id";
    let insert = ids.insert(dialect, "usage_events", &columns, conflict);
    let new = fetch_all(session, insert, |row: &mut Columns<'_>| row.text()).await?;
    Ok(new.into_iter().collect())
}

/// How much room a day has for further rows. Callers can invent users, models and tenants; their usage is counted all the
/// same, without names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    All,
    Keys,
    Nothing,
}

impl Room {
    fn of(rows: i64, max_rows_per_day: u32) -> Self {
        let most = i64::from(max_rows_per_day);
        match rows {
            rows if rows < most / 2 => Self::All,
            rows if rows < most => Self::Keys,
            _ => Self::Nothing,
        }
    }
}

fn row_key(event: &UsageEvent, room: Room) -> RowKey {
    let own = |text: &str| cut(text).into_owned();
    let several = || SEVERAL.to_owned();
    let [tenant, key, user, model] = match room {
        Room::All => {
            [&event.tenant_id, &event.api_key_id, &event.user_id, &event.model_id].map(|it| own(it))
        }
        Room::Keys => [own(&event.tenant_id), own(&event.api_key_id), several(), several()],
        Room::Nothing => [several(), several(), several(), several()],
    };
    // A code of ISO 4217, or nothing.
    let currency = if event.currency.len() == 3 { own(&event.currency) } else { String::new() };
    (event.day(), [tenant, key, user, model, currency])
}

fn bounded(amounts: &UsageAmounts) -> UsageAmounts {
    UsageAmounts::of(amounts.figures().map(|figure| figure.min(MAX_EVENT_FIGURE)))
}

async fn add_rows(
    session: &mut dyn Session,
    dialect: &Dialect,
    rows: &BTreeMap<RowKey, UsageAmounts>,
) -> Result<(), RepositoryError> {
    let mut batch = Batch::new();
    for ((day, names), amounts) in rows {
        let mut cells: Vec<Cell<'_>> = vec![(*day).into()];
        cells.extend(names.iter().map(|name| Cell::from(name.as_str())));
        let figures = amounts.figures();
        cells.extend(figures.map(|figure| {
            Cell::from(i64::try_from(figure.min(MAX_ROW_FIGURE)).unwrap_or(i64::MAX))
        }));
        batch.row(&cells)?;
    }
    let add = |name: &str| {
        let sum = format!("usage_days.{name} + excluded.{name}");
        format!("{name} = CASE WHEN {sum} > {MAX_ROW_FIGURE} THEN {MAX_ROW_FIGURE} ELSE {sum} END")
    };
    let sums: Vec<String> = UsageAmounts::NAMES.into_iter().map(add).collect();
    let conflict = format!(
        "ON CONFLICT (day, tenant_id, api_key_id, user_id, model_id, currency) DO UPDATE SET {}",
        sums.join(", ")
    );
    session.execute(batch.insert(dialect, "usage_days", &COLUMNS, &conflict)).await?;
    Ok(())
}

/// Usage within a time, grouped; the latest day first, then the dearest.
pub(super) async fn report(
    session: &mut dyn Session,
    query: &UsageQuery,
) -> Result<Vec<UsageRow>, RepositoryError> {
    let mut group_by = query.group_by.clone();
    group_by.sort_unstable();
    group_by.dedup();
    let columns: Vec<&str> = group_by.iter().map(|one| one.column()).chain(["currency"]).collect();
    let columns = columns.join(", ");
    let sum = |name: &str| {
        format!(
            "CAST(SUM({name} / {PART}) AS BIGINT), CAST(SUM({name} % {PART}) AS BIGINT) AS {name}_rest"
        )
    };
    let sums: Vec<String> = UsageAmounts::NAMES.into_iter().map(sum).collect();
    let mut sql = Query::new(format!("SELECT {columns}, {} FROM usage_days", sums.join(", ")));
    sql.push_bind(" WHERE day >= ", query.from_day);
    sql.push_bind(" AND day < ", query.until_day);
    sql.push_if(" AND tenant_id = ", query.tenant_id.clone());
    sql.push_if(" AND api_key_id = ", query.api_key_id.clone());
    sql.push_if(" AND user_id = ", query.user_id.clone());
    sql.push_if(" AND model_id = ", query.model_id.clone());
    let by_day = if group_by.contains(&UsageDimension::Day) { "day DESC, " } else { "" };
    sql.push(&format!(
        " GROUP BY {columns} ORDER BY {by_day}SUM(nanos / {PART}) DESC, SUM(nanos % {PART}) DESC, \
         SUM(tokens / {PART}) DESC, SUM(tokens % {PART}) DESC, {columns}"
    ));
    sql.push_bind(" LIMIT ", i64::from(query.limit));
    let read = |row: &mut Columns<'_>| read_row(row, &group_by);
    within(SEARCH, fetch_all(session, sql, read)).await
}

fn read_row(
    row: &mut Columns<'_>,
    group_by: &[UsageDimension],
) -> Result<UsageRow, RepositoryError> {
    let mut read = UsageRow::default();
    for dimension in group_by {
        match dimension {
            UsageDimension::Day => read.day = Some(row.int()?),
            UsageDimension::Tenant => read.tenant_id = Some(row.text()?),
            UsageDimension::Key => read.api_key_id = Some(row.text()?),
            UsageDimension::User => read.user_id = Some(row.text()?),
            UsageDimension::Model => read.model_id = Some(row.text()?),
        }
    }
    read.currency = row.text()?;
    for figure in &mut read.amounts {
        let (whole, rest) = (row.int()?, row.int()?);
        let part = |figure: i64| u128::try_from(figure).unwrap_or(0);
        *figure = part(whole).saturating_mul(part(PART)).saturating_add(part(rest));
    }
    Ok(read)
}

/// Removes what is no longer kept; returns how many rows.
pub(super) async fn prune(
    session: &mut dyn Session,
    retention: &UsageRetention,
) -> Result<u64, RepositoryError> {
    let most = i64::from(retention.most);
    // The primary key has no number: the rows of the oldest day are removed, as many as there are.
    let days = Query::new(
        "DELETE FROM usage_days WHERE day < $1 AND day = (SELECT MIN(day) FROM usage_days)",
    );
    let removed = session.execute(days.bind(retention.before_day)).await?;
    let ids = Query::new(
        "DELETE FROM usage_events WHERE event_id IN (SELECT event_id FROM usage_events \
         WHERE recorded_at < $1 ORDER BY recorded_at LIMIT $2)",
    );
    Ok(removed + session.execute(ids.bind(retention.ids_before).bind(most)).await?)
}
