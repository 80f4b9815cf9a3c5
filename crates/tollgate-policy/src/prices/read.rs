//! Reads a price file.

use tollgate_core::LATEST;

use super::price::{MAX_LONG_CONTEXT_TIERS, TokenKind};
use super::table::{Entry, MAX_MODEL_BYTES, MAX_PRICES, Pattern};
use super::{Currency, Price};
use crate::check::{choice, currency, instant, plain, require};
use crate::fields::{Fields, as_money};
use crate::node::{Kind, Node};
use crate::problem::Report;

const FILE_FIELDS: &[&str] = &["prices", "unpriced", "default_price"];
const ENTRY_FIELDS: &[&str] = &["model", "valid_from", "valid_until"];
const PRICE_FIELDS: &[&str] =
    &["currency", "per_million", "per_request", "per_image", "long_context"];

/// The prices and the default price of a file. What is wrong is reported and left out.
pub(super) fn read_table(node: &Node, report: &mut Report) -> (Vec<Entry>, Option<Price>) {
    if node.is_null() {
        return (Vec::new(), None);
    }
    let Some(fields) = Fields::open(node, "", FILE_FIELDS, report) else {
        return (Vec::new(), None);
    };
    let items = fields.list("prices", report).unwrap_or_default();
    if items.len() > MAX_PRICES {
        let message = format!("must not have more than {MAX_PRICES} entries");
        report.add(fields.at, Some("prices"), message);
        return (Vec::new(), None);
    }
    let numbered = items.iter().enumerate();
    let entries = numbered.filter_map(|(number, item)| read_entry(item, number, report)).collect();
    (entries, read_default(&fields, report))
}

/// The price of models that no entry matches, where `unpriced` says so.
fn read_default(fields: &Fields<'_>, report: &mut Report) -> Option<Price> {
    let unpriced = fields.text("unpriced", report);
    let uses_default = choice(
        unpriced.as_ref(),
        "unpriced",
        &[false, true],
        |is_default| if is_default { "default_price" } else { "reject" },
        report,
    );
    let price = fields.node("default_price").map(|node| {
        let price = Fields::open(node, "default_price", PRICE_FIELDS, report)?;
        read_price(&price, report)
    });
    match (uses_default.unwrap_or(false), price) {
        (true, Some(price)) => price,
        (true, None) => {
            let message = "is missing; unpriced: default_price needs it";
            report.add(fields.at, Some("default_price"), message);
            None
        }
        (false, Some(_)) => {
            let message = "goes with unpriced: default_price only";
            report.add(fields.at, Some("default_price"), message);
            None
        }
        (false, None) => None,
    }
}

fn read_entry(node: &Node, number: usize, report: &mut Report) -> Option<Entry> {
    let path = format!("prices[{number}]");
    let known = [ENTRY_FIELDS, PRICE_FIELDS].concat();
    let fields = Fields::open(node, &path, &known, report)?;
    let field = |name: &str| format!("{path}.{name}");
    let model = fields.text("model", report);
    let model = require(model.as_ref(), fields.at, &field("model"), report)
        .filter(|model| plain(model, &field("model"), MAX_MODEL_BYTES, report))
        .and_then(|model| {
            let pattern = Pattern::parse(&model.value);
            if pattern.is_none() {
                report.add(model.at, Some(&field("model")), "must not have more than one *");
            }
            pattern
        });
    let from = fields.text("valid_from", report);
    let from = instant(from.as_ref(), &field("valid_from"), report);
    let until_text = fields.text("valid_until", report);
    let until = instant(until_text.as_ref(), &field("valid_until"), report);
    let (valid_from, valid_until) = (from.unwrap_or(0), until.unwrap_or(LATEST));
    if let Some(until) = until_text.filter(|_| valid_from >= valid_until) {
        report.add(until.at, Some(&field("valid_until")), "must be after valid_from");
    }
    let price = read_price(&fields, report)?;
    Some(Entry { at: fields.at, model: model?, valid_from, valid_until, price, path })
}

fn read_price(fields: &Fields<'_>, report: &mut Report) -> Option<Price> {
    let code = fields.text("currency", report);
    let path = fields.path("currency");
    let code = require(code.as_ref(), fields.at, &path, report);
    let currency = code.and_then(|code| currency(code, &path, report));
    let mut price = Price::free(currency.unwrap_or(Currency::USD));
    let per_request = amount(fields, "per_request", report);
    let per_image = amount(fields, "per_image", report);
    price.per_request = per_request.unwrap_or(0);
    price.per_image = per_image.unwrap_or(0);
    let has_flat_price =
        ["per_request", "per_image"].iter().any(|name| fields.node(name).is_some());
    match fields.node("per_million") {
        Some(node) => {
            let names = TokenKind::ALL.map(TokenKind::name);
            let path = fields.path("per_million");
            if let Some(prices) = Fields::open(node, &path, &names, report) {
                price.per_million = TokenKind::ALL.map(|kind| amount(&prices, kind.name(), report));
                for whole in [TokenKind::Input, TokenKind::Output] {
                    if prices.node(whole.name()).is_none() {
                        let message = "is missing; \"0\" says that it costs nothing";
                        report.add(prices.at, Some(&prices.path(whole.name())), message);
                    }
                }
            }
        }
        None if has_flat_price => {}
        None => {
            let message = "is missing; give per_million, per_request or per_image";
            report.add(fields.at, Some(&fields.path("per_million")), message);
        }
    }
    read_long_context(fields, &mut price, report);
    currency.map(|_| price)
}

/// One tier as a map, or several as a list.
fn read_long_context(fields: &Fields<'_>, price: &mut Price, report: &mut Report) {
    let Some(node) = fields.node("long_context") else { return };
    let path = fields.path("long_context");
    let tiers: Vec<(String, &Node)> = match &node.kind {
        Kind::List(items) => {
            let name = |(number, item)| (format!("{path}[{number}]"), item);
            items.iter().enumerate().map(name).collect()
        }
        _ => vec![(path.clone(), node)],
    };
    if tiers.len() > MAX_LONG_CONTEXT_TIERS {
        let message = format!("must not have more than {MAX_LONG_CONTEXT_TIERS} entries");
        report.add(node.at, Some(&path), message);
        return;
    }
    let names = [&["above"][..], &TokenKind::ALL.map(TokenKind::name)].concat();
    for (path, node) in tiers {
        let Some(tier) = Fields::open(node, &path, &names, report) else { continue };
        let prices = TokenKind::ALL.map(|kind| amount(&tier, kind.name(), report));
        let above = tier.int("above", report);
        let Some(bound) = above.as_ref().and_then(|above| u64::try_from(above.value).ok()) else {
            let message = "must be a number of input tokens, such as 200000";
            report.add(tier.at, Some(&tier.path("above")), message);
            continue;
        };
        if price.long_context.iter().any(|(other, _)| *other == bound) {
            report.add(tier.at, Some(&tier.path("above")), "is the bound of another tier too");
        }
        price.long_context.push((bound, prices));
    }
    price.long_context.sort_by_key(|(above, _)| std::cmp::Reverse(*above));
}

fn amount(fields: &Fields<'_>, name: &str, report: &mut Report) -> Option<u64> {
    as_money(fields.node(name)?, &fields.path(name), report)
}
