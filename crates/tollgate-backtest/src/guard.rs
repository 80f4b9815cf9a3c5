//! What a change must keep to: guards that fail a build, and aims for recommended limits.

use std::fmt;

use serde::Serialize;

use crate::error::OptionError;
use crate::report::Report;

/// A figure that guards can test, its name and its meaning.
type Metric = (&'static str, fn(&Report) -> f64);

const METRICS: [Metric; 8] = [
    ("refused_share", |report| report.after.refused_share),
    ("refused", |report| report.after.refused as f64),
    ("refused_share_change", |report| {
        report.after.refused_share
            - report.before.as_ref().map_or(0.0, |before| before.refused_share)
    }),
    ("client_refused_share", |report| report.after.max_client_refused_share),
    ("refused_clients", |report| report.after.refused_clients as f64),
    ("newly_refused_clients", |report| report.newly_refused_clients as f64),
    ("throttled_share", |report| report.after.throttled_share),
    ("malformed_share", |report| report.input.malformed_share()),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Comparison {
    const ALL: [(&'static str, Self); 4] =
        [(">=", Self::AtLeast), ("<=", Self::AtMost), (">", Self::Above), ("<", Self::Below)];

    fn holds(self, figure: f64, bound: f64) -> bool {
        match self {
            Self::Above => figure > bound,
            Self::AtLeast => figure >= bound,
            Self::Below => figure < bound,
            Self::AtMost => figure <= bound,
        }
    }
}

/// A condition on which a backtest fails, such as `refused_share>0.01`.
#[derive(Debug, Clone)]
pub struct Guard {
    text: String,
    metric: Metric,
    comparison: Comparison,
    bound: f64,
}

/// How a guard ended.
#[derive(Debug, Clone, Serialize)]
pub struct GuardResult {
    /// The guard as it was stated.
    pub guard: String,
    /// The figure.
    pub value: f64,
    /// Whether the condition to fail on is true.
    pub is_broken: bool,
}

impl Guard {
    /// Parses `METRIC>NUMBER`; `>=`, `<` and `<=` too.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let names = METRICS.map(|(name, _)| name).join(", ");
        let (name, comparison, bound) = parse_condition(text)?;
        let metric = METRICS.into_iter().find(|(known, _)| *known == name).ok_or_else(|| {
            OptionError(format!("{name:?} is no figure of a backtest; known are {names}"))
        })?;
        Ok(Self { text: text.trim().to_owned(), metric, comparison, bound })
    }

    /// Tests a report.
    pub(crate) fn test(&self, report: &Report) -> GuardResult {
        let value = (self.metric.1)(report);
        let is_broken = self.comparison.holds(value, self.bound);
        GuardResult { guard: self.text.clone(), value, is_broken }
    }
}

fn parse_condition(text: &str) -> Result<(&str, Comparison, f64), OptionError> {
    let wrong = || {
        OptionError(format!(
            "{text:?} is no condition; write a figure, >, >=, < or <=, and a number, such as \
             'refused_share>0.01'"
        ))
    };
    let place = text.find(['<', '>']).ok_or_else(wrong)?;
    let (name, rest) = text.split_at_checked(place).ok_or_else(wrong)?;
    let (sign, comparison) =
        Comparison::ALL.into_iter().find(|(sign, _)| rest.starts_with(sign)).ok_or_else(wrong)?;
    let bound = rest.get(sign.len()..).unwrap_or_default().trim();
    let bound: f64 = match bound.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => bound.parse(),
    }
    .map_err(|_| wrong())?;
    if !bound.is_finite() {
        return Err(wrong());
    }
    Ok((name.trim(), comparison, bound))
}

/// What recommended limits must keep to: the share of requests that are refused, and the share of one
/// client.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Aim {
    /// At most this share of all requests is refused.
    pub refused_share: f64,
    /// No client is refused a larger share of its requests.
    pub client_refused_share: f64,
}

impl Default for Aim {
    fn default() -> Self {
        Self { refused_share: 0.001, client_refused_share: 0.01 }
    }
}

impl Aim {
    /// Parses `refused_share<=0.001,client_refused_share<=0.01`; a part that is absent sets no bound.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let mut aim = Self { refused_share: 1.0, client_refused_share: 1.0 };
        for part in text.split(',') {
            let (name, comparison, bound) = parse_condition(part)?;
            let place = match name {
                "refused_share" => &mut aim.refused_share,
                "client_refused_share" => &mut aim.client_refused_share,
                _ => {
                    return Err(OptionError(format!(
                        "{name:?} is no aim; known are refused_share and client_refused_share"
                    )));
                }
            };
            if comparison != Comparison::AtMost || !(0.0..=1.0).contains(&bound) {
                return Err(OptionError(format!(
                    "{part:?}: an aim is {name}<=SHARE, with a share from 0 to 1"
                )));
            }
            *place = bound;
        }
        Ok(aim)
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| crate::report::percent(share);
        match (self.refused_share < 1.0, self.client_refused_share < 1.0) {
            (true, true) => write!(
                f,
                "refuse at most {} of requests, and no client more than {}",
                percent(self.refused_share),
                percent(self.client_refused_share)
            ),
            (true, false) => {
                write!(f, "refuse at most {} of requests", percent(self.refused_share))
            }
            (false, true) => {
                write!(f, "refuse no client more than {}", percent(self.client_refused_share))
            }
            (false, false) => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_guards_and_aims_say_what_to_write() {
        for (wrong, hint) in [
            ("refused_share", "such as"),
            ("refused_share>", "such as"),
            ("refused_share>x", "such as"),
            ("refused_share>NaN", "such as"),
            ("unknown>1", "known are refused_share"),
        ] {
            let message = Guard::parse(wrong).unwrap_err().to_string();
            assert!(message.contains(hint), "{message}");
        }
        for wrong in ["refused_share>=0.1", "refused_share<=2", "refused<=0.1", "x"] {
            assert!(Aim::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn aims_are_shares_or_percent() {
        let aim = Aim::parse("refused_share<=0.1%, client_refused_share<=0.01").unwrap();
        assert_eq!(aim, Aim::default());
        let open = Aim::parse("refused_share<=0").unwrap();
        assert!((open.client_refused_share - 1.0).abs() < f64::EPSILON);
    }
}
