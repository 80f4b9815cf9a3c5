//! Queries, conditions and bodies of admin calls.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use serde_json::Value;
use tollgate_control::{Millis, Page, Precondition, draft};

use super::respond::AdminError;

/// Entries of a page, unless the caller says how many.
const DEFAULT_LIMIT: u32 = 100;
/// Entries of a page at most.
pub(crate) const MAX_LIMIT: u32 = 1_000;
/// The longest cursor.
const MAX_CURSOR: usize = 1_024;

/// The parameters of a query, each given once; those that are not asked for are errors.
pub(crate) struct Query<'q> {
    pairs: Vec<(Cow<'q, str>, Cow<'q, str>)>,
}

impl<'q> Query<'q> {
    pub(crate) fn new(query: &'q str) -> Result<Self, AdminError> {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        for (place, (name, _)) in pairs.iter().enumerate() {
            if pairs.iter().take(place).any(|(other, _)| other == name) {
                return Err(AdminError::invalid(&shown(name), "is given twice"));
            }
        }
        Ok(Self { pairs })
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let place = self.pairs.iter().position(|(given, _)| given == name)?;
        Some(self.pairs.swap_remove(place).1.into_owned())
    }

    /// All that is left.
    pub(crate) fn rest(self) -> Vec<(Cow<'q, str>, Cow<'q, str>)> {
        self.pairs
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, AdminError> {
        match self.take(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(AdminError::invalid(name, "must be true or false")),
        }
    }

    pub(crate) fn instant(&mut self, name: &str) -> Result<Option<Millis>, AdminError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let wrong = || AdminError::invalid(name, "must be an instant such as 2027-01-31T12:00:00Z");
        draft::instant(&text).map(Some).ok_or_else(wrong)
    }

    /// An instant, or a time before now such as `15m`.
    pub(crate) fn time(&mut self, name: &str, now: Millis) -> Result<Option<Millis>, AdminError> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let at = draft::instant(&text).or_else(|| now.checked_sub(millis(&text)?));
        let wrong = "must be a time before now such as 15m, 2h or 7d, or an instant such as \
                     2027-01-31T12:00:00Z";
        at.map(Some).ok_or_else(|| AdminError::invalid(name, wrong))
    }

    pub(crate) fn page(&mut self) -> Result<Page, AdminError> {
        let limit = match self.take("limit") {
            None => DEFAULT_LIMIT,
            Some(text) => {
                let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                let wrong =
                    || AdminError::invalid("limit", format!("must be from 1 to {MAX_LIMIT}"));
                limit.ok_or_else(wrong)?
            }
        };
        let after = self.take("cursor");
        if after.as_ref().is_some_and(|after| after.len() > MAX_CURSOR || after.contains('\0')) {
            return Err(AdminError::invalid("cursor", "must be a next_cursor of this call"));
        }
        Ok(Page { after, limit })
    }

    /// Refuses what nobody took.
    pub(crate) fn end(self) -> Result<(), AdminError> {
        match self.pairs.first() {
            Some((name, _)) => {
                Err(AdminError::invalid(&shown(name), "is not a parameter of this call"))
            }
            None => Ok(()),
        }
    }
}

/// A length of time such as `15m`.
pub(super) fn millis(text: &str) -> Option<Millis> {
    let unit = text.chars().next_back()?;
    let count: Millis = text.strip_suffix(unit)?.parse().ok().filter(|count| *count >= 0)?;
    count.checked_mul(match unit {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => 86_400_000,
        'w' => 604_800_000,
        _ => return None,
    })
}

fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

/// What the caller says about the version that is there.
pub(crate) fn precondition(headers: &HeaderMap) -> Result<Precondition, AdminError> {
    let text = |name: &http::HeaderName| -> Result<Option<String>, AdminError> {
        let mut given = Vec::new();
        for value in headers.get_all(name) {
            let wrong = |_| AdminError::invalid(name.as_str(), "must be printable ASCII");
            given.push(value.to_str().map_err(wrong)?);
        }
        Ok((!given.is_empty()).then(|| given.join(",")))
    };
    match (text(&IF_MATCH)?, text(&IF_NONE_MATCH)?) {
        (None, None) => Ok(Precondition::None),
        (Some(_), Some(_)) => {
            Err(AdminError::invalid("if-none-match", "cannot be given beside If-Match"))
        }
        (None, Some(none)) if none.trim() == "*" => Ok(Precondition::Absent),
        (None, Some(_)) => Err(AdminError::invalid("if-none-match", "can only be *")),
        (Some(tags), None) if tags.trim() == "*" => Ok(Precondition::Exists),
        (Some(tags), None) => {
            let version = |tag: &str| -> Option<i64> {
                tag.trim().strip_prefix('"')?.strip_suffix('"')?.parse().ok()
            };
            // A tag that is none of ours matches nothing.
            Ok(Precondition::OneOf(tags.split(',').filter_map(version).collect()))
        }
    }
}

/// A JSON body. Comments (`// …`) are taken out first where it does not parse as it is: examples in
/// documents have them.
pub(crate) fn body(bytes: &[u8]) -> Result<Value, AdminError> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(AdminError::invalid("body", "must be UTF-8"));
    };
    if text.trim().is_empty() {
        return Err(AdminError::invalid("body", "is missing"));
    }
    let parsed = serde_json::from_str(text)
        .or_else(|error| serde_json::from_str(&without_comments(text)).map_err(|_| error));
    parsed.map_err(|error| AdminError::invalid("body", format!("is not valid JSON: {error}")))
}

fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut is_escaped) = (false, false);
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        if in_string {
            in_string = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
        } else if letter == '"' {
            in_string = true;
        } else if letter == '/' && rest.peek() == Some(&'/') {
            while rest.next_if(|letter| *letter != '\n').is_some() {}
            continue;
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_taken_out_of_examples() {
        let text = "{\"a\": \"x // y\\\" // z\", // why\n \"b\": 1} // end";
        let value = body(text.as_bytes()).unwrap();
        assert_eq!(value, serde_json::json!({"a": "x // y\" // z", "b": 1}));
        for wrong in ["", " ", "{", "{\"a\": 1 / 2}", "\u{0}"] {
            assert!(body(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn conditions_are_read() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, http::HeaderValue::from_static(value));
            precondition(&headers)
        };
        assert_eq!(of("if-match", "\"3\"").unwrap(), Precondition::OneOf(vec![3]));
        assert_eq!(of("if-match", "\"3\", W/\"4\", x").unwrap(), Precondition::OneOf(vec![3]));
        assert_eq!(of("if-match", "*").unwrap(), Precondition::Exists);
        assert_eq!(of("if-none-match", "*").unwrap(), Precondition::Absent);
        assert!(of("if-none-match", "\"3\"").is_err());
        assert_eq!(of("accept", "*").unwrap(), Precondition::None);
    }

    #[test]
    fn queries_are_bounded_and_exact() {
        let mut query = Query::new("limit=5&cursor=a%20b&dry_run=true").unwrap();
        assert_eq!(query.page().unwrap(), Page { after: Some("a b".to_owned()), limit: 5 });
        assert!(query.flag("dry_run").unwrap());
        assert!(query.end().is_ok());
        assert!(Query::new("limit=0").unwrap().page().is_err());
        assert!(Query::new("limit=1001").unwrap().page().is_err());
        assert!(Query::new("limit=x").unwrap().page().is_err());
        assert!(Query::new("a=1&a=2").is_err());
        assert!(Query::new("a=1").unwrap().end().is_err());
        assert!(Query::new("dry_run=yes").unwrap().flag("dry_run").is_err());
        assert!(Query::new("from=today").unwrap().instant("from").is_err());
    }
}
