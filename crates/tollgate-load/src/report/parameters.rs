//! What made a report, without what nobody else should know.

use std::collections::BTreeMap;

use crate::plan::{Distribution, Length, Plan, Target};

/// The plan by flag. Tokens and the values of headers are left out.
pub(crate) fn of(plan: &Plan) -> BTreeMap<&'static str, String> {
    let mut all: BTreeMap<&'static str, String> = BTreeMap::new();
    all.insert("url", plan.url.clone());
    all.insert("target", plan.target.name().to_owned());
    all.insert("mode", if plan.rate_per_second.is_some() { "open" } else { "closed" }.to_owned());
    if let Some(rate) = plan.rate_per_second {
        all.insert("rate", rate.to_string());
    }
    match plan.length {
        Length::Duration(duration) => all.insert("duration", format!("{duration:?}")),
        Length::Requests(count) => all.insert("requests", count.to_string()),
    };
    if !plan.warmup.is_zero() {
        all.insert("warmup", format!("{:?}", plan.warmup));
    }
    all.insert("connections", plan.connections.to_string());
    all.insert("threads", plan.threads.min(plan.connections).to_string());
    if plan.target.is_grpc() {
        all.insert("streams", plan.streams.to_string());
    }
    if plan.target.has_batches() {
        all.insert("batch", plan.batch.to_string());
    }
    all.insert("timeout", format!("{:?}", plan.timeout));
    all.insert("keys", plan.keys.to_string());
    let distribution = match plan.distribution {
        Distribution::Uniform => "uniform".to_owned(),
        Distribution::Zipf { exponent } => format!("zipf {exponent}"),
        Distribution::Hot { share } => format!("hot {share}"),
    };
    all.insert("distribution", distribution);
    all.insert("seed", plan.seed.to_string());
    let mut add = |name, values: Vec<String>| {
        if !values.is_empty() {
            all.insert(name, values.join(" "));
        }
    };
    let has_descriptors = plan.target == Target::Envoy && !plan.descriptors.is_empty();
    if has_descriptors {
        add("descriptor", plan.descriptors.clone());
    } else {
        add("vary", plan.vary.iter().map(|attribute| attribute.name().to_owned()).collect());
    }
    if plan.target == Target::Envoy {
        add("domain", vec![plan.domain.clone()]);
    }
    add("field", plan.fields.iter().map(crate::fields::Field::shown).collect());
    add("header", plan.headers.iter().map(|(name, _)| format!("{name}: …")).collect());
    all
}
