//! Attributes that are part of a field, taken out by a pattern with names.

use crate::error::OptionError;

/// The most parts of one pattern.
const MAX_PARTS: usize = 32;

/// Takes attributes out of a field: `path=/t/{tenant_id}/*` sets `tenant_id` to the second segment.
///
/// A pattern is text that must be there, `{name}` for one or more characters that become the attribute
/// of this name, and `*` for anything. A name ends where the text after it first occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extract {
    pub(crate) field: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Name(String),
    Any,
}

impl Extract {
    /// Parses `FIELD=PATTERN`.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let wrong = |why: &str| {
            let example = "write FIELD=PATTERN, such as path=/t/{tenant_id}/*";
            OptionError(format!("{text:?}: {why}; {example}"))
        };
        let (field, pattern) =
            text.split_once('=').ok_or_else(|| wrong("there is no = between field and pattern"))?;
        if field.is_empty() {
            return Err(wrong("the field has no name"));
        }
        let parts = parts(pattern).map_err(&wrong)?;
        if !parts.iter().any(|part| matches!(part, Part::Name(_))) {
            return Err(wrong("the pattern has no {name}"));
        }
        let is_open = |part: &Part| !matches!(part, Part::Text(_));
        if parts.windows(2).any(|two| two.iter().all(is_open)) {
            return Err(wrong("between two {name} or * there must be text"));
        }
        Ok(Self { field: field.to_owned(), parts })
    }

    /// The names and values in this text; `false` if it does not match, and nothing was found then.
    pub(crate) fn apply(&self, text: &str, mut found: impl FnMut(&str, &str)) -> bool {
        let mut values = smallvec::SmallVec::<[(&str, &str); 4]>::new();
        let mut rest = text;
        let mut parts = self.parts.iter().peekable();
        while let Some(part) = parts.next() {
            let name = match part {
                Part::Text(text) => match rest.strip_prefix(text.as_str()) {
                    Some(after) => {
                        rest = after;
                        continue;
                    }
                    None => return false,
                },
                Part::Name(name) => Some(name),
                Part::Any => None,
            };
            let end = match parts.peek() {
                Some(Part::Text(next)) => match rest.find(next.as_str()) {
                    Some(end) => end,
                    None => return false,
                },
                _ => rest.len(),
            };
            let (value, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
            if let Some(name) = name {
                if value.is_empty() {
                    return false;
                }
                values.push((name, value));
            }
            rest = after;
        }
        if !rest.is_empty() {
            return false;
        }
        values.iter().for_each(|(name, value)| found(name, value));
        true
    }
}

fn parts(pattern: &str) -> Result<Vec<Part>, &'static str> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        let part = match letter {
            '*' => Part::Any,
            '{' => {
                let name: String = letters.by_ref().take_while(|letter| *letter != '}').collect();
                if name.is_empty() {
                    return Err("{} has no name");
                }
                Part::Name(name)
            }
            other => {
                text.push(other);
                continue;
            }
        };
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(part);
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    if parts.len() > MAX_PARTS { Err("the pattern has too many parts") } else { Ok(parts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, text: &str) -> Option<Vec<(String, String)>> {
        let mut values = Vec::new();
        let extract = Extract::parse(pattern).unwrap();
        let matches =
            extract.apply(text, |name, value| values.push((name.to_owned(), value.to_owned())));
        matches.then_some(values)
    }

    #[test]
    fn names_end_where_the_next_text_begins() {
        let tenant = |value: &str| Some(vec![("tenant_id".to_owned(), value.to_owned())]);
        assert_eq!(found("path=/t/{tenant_id}/*", "/t/acme/users/7"), tenant("acme"));
        assert_eq!(found("path=/t/{tenant_id}", "/t/acme/users/7"), tenant("acme/users/7"));
        assert_eq!(found("path=/t/{tenant_id}/*", "/u/acme/"), None);
        assert_eq!(found("path=/t/{tenant_id}/*", "/t//"), None);
        assert_eq!(found("ua=*App/{tenant_id} *", "Mozilla App/7 (é)"), tenant("7"));
    }

    #[test]
    fn wrong_patterns_say_what_to_write() {
        for wrong in ["path", "=x{a}", "path=/x/*", "path={a}{b}", "path={a}*", "path={}/"] {
            let message = Extract::parse(wrong).unwrap_err().to_string();
            assert!(message.contains("path=/t/{tenant_id}/*"), "{message}");
        }
    }
}
