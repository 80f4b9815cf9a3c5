//! `GET usage/report`: the ledger of usage, grouped, as JSON, CSV or in the columns of FOCUS.

use axum::body::Body;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderValue, Response};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use tollgate_control::{Millis, UsageAmounts, UsageDimension, UsageQuery, UsageRow, draft};

use super::csv::Csv;
use super::read::Query;
use super::respond::{AdminError, Answer};
use super::{Admin, Asked};

/// Rows of a report at most.
pub(super) const MAX_ROWS: u32 = 10_000;
/// Rows of a report unless the caller says how many.
const DEFAULT_ROWS: u32 = 1_000;
/// The longest time of one report.
const MAX_DAYS: i64 = 3_660;

const DAY: Millis = 86_400_000;
/// 1e-9 of a unit.
const NANOS_PER_UNIT: u128 = 1_000_000_000;
/// The place of money among the figures, and that of tokens.
const NANOS: usize = 10;
const TOKENS: usize = 2;

/// The columns of FOCUS that Tollgate fills. The specification: <https://focus.finops.org>.
const FOCUS: [&str; 22] = [
    "BilledCost",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ServiceCategory",
    "ServiceName",
    "SubAccountId",
    "Tags",
];

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
    Focus,
}

impl Admin {
    /// `GET usage/report`.
    pub(super) async fn usage_report(&self, asked: &Asked) -> Result<Response<Body>, AdminError> {
        let (mut query, format) = read(&asked.query, asked.now)?;
        query.tenant_id = asked.filtered_tenant(query.tenant_id)?;
        let searching = self.tenant_searches.enter(asked.tenant());
        let _searching = searching.ok_or(AdminError::TooManySearches)?;
        let limit = query.limit;
        // One more than is shown says whether there are more.
        query.limit = limit.saturating_add(1);
        let mut rows = self.control.repository().usage_report(&query).await?;
        let is_cut = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        if format == Format::Json {
            return Ok(Answer::ok(view(&query, &rows, is_cut)).respond());
        }
        if is_cut {
            // A file does not say that rows are missing.
            let message = format!(
                "there are more than {limit} rows: raise limit (up to {MAX_ROWS}), shorten the time, or group by less"
            );
            return Err(AdminError::invalid("limit", message));
        }
        let text = if format == Format::Csv { csv(&query, &rows) } else { focus(&rows) };
        Ok(file(text))
    }
}

fn file(text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let name = "attachment; filename=\"usage.csv\"";
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static(name));
    response
}

/// What is asked for. Without times it is the current month, in UTC.
fn read(text: &str, now: Millis) -> Result<(UsageQuery, Format), AdminError> {
    let mut query = Query::new(text)?;
    let format = match query.take("format").as_deref() {
        None | Some("json") => Format::Json,
        Some("csv") => Format::Csv,
        Some("focus") => Format::Focus,
        Some(_) => return Err(AdminError::invalid("format", "must be json, csv or focus")),
    };
    let group_by = dimensions(query.take("group_by").as_deref(), format)?;
    let from = time(&mut query, "from", now)?.unwrap_or_else(|| month_of(day_of(now)) * DAY);
    let until = time(&mut query, "until", now)?.unwrap_or(now + 1);
    let (from_day, until_day) = (day_of(from), day_of(until - 1) + 1);
    if from_day >= until_day {
        return Err(AdminError::invalid("from", "must be before until"));
    }
    if until_day - from_day > MAX_DAYS {
        return Err(AdminError::invalid(
            "from",
            format!("must be within {MAX_DAYS} days of until"),
        ));
    }
    let limit = match query.take("limit") {
        None if format == Format::Json => DEFAULT_ROWS,
        None => MAX_ROWS,
        Some(text) => {
            let limit = text.parse().ok().filter(|limit| (1..=MAX_ROWS).contains(limit));
            let wrong = || AdminError::invalid("limit", format!("must be from 1 to {MAX_ROWS}"));
            limit.ok_or_else(wrong)?
        }
    };
    let usage = UsageQuery {
        group_by,
        from_day,
        until_day,
        tenant_id: query.take("tenant_id"),
        api_key_id: query.take("api_key_id"),
        user_id: query.take("user_id"),
        model_id: query.take("model_id"),
        limit,
    };
    query.end()?;
    Ok((usage, format))
}

/// A day such as 2027-01-31, an instant, or a time before now.
fn time(query: &mut Query<'_>, name: &str, now: Millis) -> Result<Option<Millis>, AdminError> {
    let Some(text) = query.take(name) else { return Ok(None) };
    let of_day = |date: Date| {
        let at = date.to_zoned(TimeZone::UTC).ok()?;
        Some(at.timestamp().as_millisecond())
    };
    let day = text.parse::<Date>().ok().filter(|_| text.len() == "2027-01-31".len());
    let at = day.and_then(of_day).or_else(|| draft::instant(&text));
    let at = at.or_else(|| now.checked_sub(super::read::millis(&text)?));
    let wrong = "must be a day such as 2027-01-31, an instant such as 2027-01-31T12:00:00Z, or a \
                 time before now such as 7d";
    at.map(Some).ok_or_else(|| AdminError::invalid(name, wrong))
}

const fn day_of(at: Millis) -> i64 {
    at.div_euclid(DAY)
}

fn date_of(day: i64) -> Date {
    let at = Timestamp::from_millisecond(day.saturating_mul(DAY)).unwrap_or(Timestamp::UNIX_EPOCH);
    at.to_zoned(TimeZone::UTC).date()
}

/// The first day of the month of a day.
fn month_of(day: i64) -> i64 {
    day - i64::from(date_of(day).day()) + 1
}

fn dimensions(text: Option<&str>, format: Format) -> Result<Vec<UsageDimension>, AdminError> {
    let mut found = Vec::new();
    let names = text.filter(|text| !text.is_empty());
    for name in names.iter().flat_map(|text| text.split(',')) {
        let known = UsageDimension::ALL.into_iter().find(|one| one.name() == name.trim());
        let wrong =
            || AdminError::invalid("group_by", "must be some of day, tenant, key, user, model");
        let known = known.ok_or_else(wrong)?;
        if found.contains(&known) {
            return Err(AdminError::invalid("group_by", format!("{name} is given twice")));
        }
        found.push(known);
    }
    if format == Format::Focus {
        // A charge has a period, and a row of FOCUS the parts of an account.
        let needed = [UsageDimension::Day, UsageDimension::Tenant, UsageDimension::Key];
        let model = text.is_none().then_some(UsageDimension::Model);
        for dimension in needed.into_iter().chain(model) {
            if !found.contains(&dimension) {
                found.push(dimension);
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Money as a decimal, exactly.
fn decimal(nanos: u128) -> String {
    let (units, rest) = (nanos / NANOS_PER_UNIT, nanos % NANOS_PER_UNIT);
    if rest == 0 {
        return units.to_string();
    }
    format!("{units}.{rest:09}").trim_end_matches('0').to_owned()
}

/// The value of a row that it is grouped by.
fn value_of(row: &UsageRow, dimension: UsageDimension) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    match dimension {
        UsageDimension::Day => row.day.map(|day| date_of(day).to_string()).unwrap_or_default(),
        UsageDimension::Tenant => text(&row.tenant_id),
        UsageDimension::Key => text(&row.api_key_id),
        UsageDimension::User => text(&row.user_id),
        UsageDimension::Model => text(&row.model_id),
    }
}

fn view(query: &UsageQuery, rows: &[UsageRow], is_cut: bool) -> Value {
    let item = |row: &UsageRow| {
        let mut item = Map::new();
        for dimension in &query.group_by {
            let value = value_of(row, *dimension);
            let value = if value.is_empty() { Value::Null } else { value.into() };
            item.insert(dimension.column().to_owned(), value);
        }
        for (name, figure) in UsageAmounts::NAMES.iter().zip(row.amounts).take(NANOS) {
            item.insert((*name).to_owned(), u64::try_from(figure).unwrap_or(u64::MAX).into());
        }
        let has_money = !row.currency.is_empty();
        let money = has_money.then(|| decimal(row.amounts[NANOS]));
        item.insert("currency".to_owned(), has_money.then_some(&*row.currency).into());
        item.insert("money".to_owned(), money.into());
        Value::Object(item)
    };
    json!({
        "from": date_of(query.from_day).to_string(),
        "until": date_of(query.until_day).to_string(),
        "group_by": query.group_by.iter().map(|one| one.name()).collect::<Vec<_>>(),
        "items": rows.iter().map(item).collect::<Vec<_>>(),
        "truncated": is_cut,
    })
}

fn csv(query: &UsageQuery, rows: &[UsageRow]) -> String {
    let mut csv = Csv::default();
    let names = query.group_by.iter().map(|one| one.column());
    csv.row(names.chain(UsageAmounts::NAMES.into_iter().take(NANOS)).chain(["currency", "money"]));
    for row in rows {
        let mut cells: Vec<String> = query.group_by.iter().map(|one| value_of(row, *one)).collect();
        cells.extend(row.amounts.iter().take(NANOS).map(u128::to_string));
        let has_money = !row.currency.is_empty();
        cells.push(row.currency.clone());
        cells.push(if has_money { decimal(row.amounts[NANOS]) } else { String::new() });
        csv.row(cells.iter().map(String::as_str));
    }
    csv.finish()
}

/// Rows as charges. What has no price is no charge.
fn focus(rows: &[UsageRow]) -> String {
    let mut csv = Csv::default();
    csv.row(FOCUS.into_iter());
    for row in rows.iter().filter(|row| !row.currency.is_empty()) {
        let day = row.day.unwrap_or(0);
        let start_of = |day: i64| format!("{}T00:00:00Z", date_of(day));
        let month = month_of(day);
        let next_month = month_of(month + 31);
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let (cost, model) = (decimal(row.amounts[NANOS]), text(&row.model_id));
        let service = if model.is_empty() { "Models" } else { &*model };
        let tags = match &row.user_id {
            Some(user) => json!({ "user_id": user }).to_string(),
            None => "{}".to_owned(),
        };
        let cells: [&str; 22] = [
            &cost,
            &row.currency,
            &start_of(next_month),
            &start_of(month),
            "Usage",
            &format!("{} requests of {service}", row.amounts[0]),
            "Usage-Based",
            &start_of(day + 1),
            &start_of(day),
            &row.amounts[TOKENS].to_string(),
            "Tokens",
            &cost,
            &cost,
            "Tollgate",
            &cost,
            "Tollgate",
            "Tollgate",
            &text(&row.api_key_id),
            "AI and Machine Learning",
            service,
            &text(&row.tenant_id),
            &tags,
        ];
        csv.row(cells.into_iter());
    }
    csv.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-02-10T12:00:00Z.
    const NOW: Millis = 1_770_724_800_000;

    fn parsed(text: &str) -> Result<(UsageQuery, Format), AdminError> {
        read(text, NOW)
    }

    fn days(text: &str) -> (String, String) {
        let query = parsed(text).unwrap().0;
        (date_of(query.from_day).to_string(), date_of(query.until_day).to_string())
    }

    #[test]
    fn times_are_whole_days_and_the_month_by_itself() {
        let dates = |from: &str, until: &str| (from.to_owned(), until.to_owned());
        assert_eq!(days(""), dates("2026-02-01", "2026-02-11"));
        assert_eq!(days("from=2026-01-05&until=2026-01-07"), dates("2026-01-05", "2026-01-07"));
        assert_eq!(days("from=7d"), dates("2026-02-03", "2026-02-11"));
        assert_eq!(
            days("from=2026-01-05T10:00:00Z&until=2026-01-05T11:00:00Z"),
            dates("2026-01-05", "2026-01-06")
        );
        for wrong in [
            "from=yesterday",
            "from=2026-02-30",
            "from=2026-03-01",
            "from=2026-01-02&until=2026-01-02",
            "from=1900-01-01",
            "group_by=moon",
            "group_by=day,day",
            "format=xml",
            "limit=0",
            "limit=10001",
            "nonsense=1",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    fn row() -> UsageRow {
        let mut amounts = [0; 11];
        (amounts[0], amounts[TOKENS], amounts[NANOS]) = (3, 40, 1_500_000_001);
        UsageRow {
            day: Some(20_494),
            tenant_id: Some("=cmd|' /C calc'!A0".to_owned()),
            api_key_id: Some("vk_1".to_owned()),
            user_id: None,
            model_id: Some("a,\"b\"\n-c".to_owned()),
            currency: "USD".to_owned(),
            amounts,
        }
    }

    #[test]
    fn money_is_exact() {
        assert_eq!(decimal(1_500_000_001), "1.500000001");
        assert_eq!((decimal(0), decimal(2_000_000_000)), ("0".to_owned(), "2".to_owned()));
        assert_eq!(decimal(u128::from(u64::MAX) * 10), "184467440737.09551615");
    }

    #[test]
    fn a_spreadsheet_calculates_nothing_of_what_callers_name_themselves() {
        let (query, _) = parsed("group_by=day,tenant,key,model&format=csv").unwrap();
        let text = csv(&query, &[row()]);
        let line = text.split_once("\r\n").unwrap().1;
        assert!(
            line.starts_with("2026-02-10,'=cmd|' /C calc'!A0,vk_1,\"a,\"\"b\"\"\n-c\",3,0,40,"),
            "{line}"
        );
        assert!(line.ends_with(",USD,1.500000001\r\n"), "{line}");
    }

    #[test]
    fn charges_of_focus_have_a_period_and_a_currency() {
        let (query, format) = parsed("format=focus").unwrap();
        assert_eq!(format, Format::Focus);
        assert!(query.group_by.contains(&UsageDimension::Day));
        let unpriced = UsageRow { currency: String::new(), ..row() };
        let text = focus(&[row(), unpriced]);
        assert_eq!(text.matches("Usage-Based").count(), 1, "{text}");
        for expected in [
            "1.500000001,USD,2026-03-01T00:00:00Z,2026-02-01T00:00:00Z,Usage,",
            ",2026-02-11T00:00:00Z,2026-02-10T00:00:00Z,40,Tokens,",
            ",vk_1,AI and Machine Learning,",
            ",'=cmd|' /C calc'!A0,{}\r\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
