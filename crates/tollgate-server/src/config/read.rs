//! Reads settings one by one, each checked for its type and range; collects what is wrong.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::problem::{ConfigProblems, Origin};
use super::raw::{Raw, Setting, place};
use super::tree::Value;

/// The words of a truth value given as text, by a variable.
const TRUTHS: [(&str, bool); 2] = [("true", true), ("false", false)];

/// Takes settings out of the raw stage.
///
/// A wrong value is reported and stands as the type's default, so that reading goes on and finds the
/// other problems; the result is thrown away in the end.
pub(super) struct Reader {
    raw: Raw,
    pub(super) problems: ConfigProblems,
}

/// A text and where it was said.
pub(super) struct Said<T> {
    pub(super) value: T,
    pub(super) origin: Origin,
}

impl Reader {
    pub(super) const fn new(raw: Raw, problems: ConfigProblems) -> Self {
        Self { raw, problems }
    }

    /// The problems, and one more for each key of the default file that nothing has read.
    pub(super) fn finish(mut self) -> ConfigProblems {
        for (key, setting) in &self.raw.settings {
            self.problems.add(&setting.origin, Some(key), "nothing reads this key");
        }
        self.problems
    }

    /// Where a key that has not been read was set.
    pub(super) fn origin(&self, key: &str) -> Option<Origin> {
        self.raw.settings.get(key).map(|setting| setting.origin.clone())
    }

    fn take(&mut self, key: &str) -> Option<Setting> {
        let setting = self.raw.settings.remove(key);
        if setting.is_none() {
            let origin = Origin::Variable(super::raw::variable_of(key));
            self.problems.add(&origin, Some(key), "the default file has no such key");
        }
        setting
    }

    pub(super) fn wrong(&mut self, origin: &Origin, key: &str, message: impl Into<String>) {
        self.problems.add(origin, Some(key), message);
    }

    fn wrong_kind(&mut self, setting: &Setting, key: &str, wanted: &str) {
        let message = format!("must be {wanted}, not {}", setting.value.kind());
        self.problems.add(&setting.origin, Some(key), message);
    }

    /// Text that may be null.
    pub(super) fn optional_text(&mut self, key: &str, wanted: &str) -> Option<Said<String>> {
        let setting = self.take(key)?;
        match setting.value {
            Value::Null => None,
            Value::Text(value) => Some(Said { value, origin: setting.origin }),
            _ => {
                self.wrong_kind(&setting, key, wanted);
                None
            }
        }
    }

    /// Text that `parse` understands.
    pub(super) fn parsed<T>(
        &mut self,
        key: &str,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Said<T>> {
        let setting = self.take(key)?;
        let Value::Text(text) = &setting.value else {
            self.wrong_kind(&setting, key, wanted);
            return None;
        };
        let Some(value) = parse(text) else {
            self.wrong(&setting.origin, key, format!("must be {wanted}, not {text:?}"));
            return None;
        };
        Some(Said { value, origin: setting.origin })
    }

    /// A path that may be null.
    pub(super) fn optional_path(&mut self, key: &str) -> Option<Said<PathBuf>> {
        let said = self.optional_text(key, "a path or null")?;
        if said.value.is_empty() {
            self.wrong(&said.origin, key, "must not be empty; null means none");
            return None;
        }
        Some(Said { value: said.value.into(), origin: said.origin })
    }

    /// A whole number within a range.
    pub(super) fn number(&mut self, key: &str, range: RangeInclusive<u64>) -> u64 {
        let wanted = format!("a whole number from {} to {}", range.start(), range.end());
        let Some(setting) = self.take(key) else { return 0 };
        let number = match &setting.value {
            Value::Integer(number) => Some(*number),
            Value::Text(text) if setting.file.is_none() => text.trim().parse().ok(),
            _ => None,
        };
        match number {
            None => self.wrong_kind(&setting, key, &wanted),
            Some(number) => match u64::try_from(number) {
                Ok(number) if range.contains(&number) => return number,
                _ => self.wrong(&setting.origin, key, format!("must be {wanted}, not {number}")),
            },
        }
        0
    }

    /// A number with a fraction, within a range.
    pub(super) fn fraction(&mut self, key: &str, range: RangeInclusive<f64>) -> f64 {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        let Some(setting) = self.take(key) else { return *range.end() };
        let number = match &setting.value {
            #[expect(clippy::cast_precision_loss, reason = "compared with a small range")]
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            Value::Text(text) if setting.file.is_none() => text.trim().parse().ok(),
            _ => None,
        };
        match number {
            Some(number) if range.contains(&number) => return number,
            Some(number) => {
                self.wrong(&setting.origin, key, format!("must be {wanted}, not {number}"));
            }
            None => self.wrong_kind(&setting, key, &wanted),
        }
        *range.end()
    }

    /// True or false.
    pub(super) fn boolean(&mut self, key: &str) -> bool {
        let Some(setting) = self.take(key) else { return false };
        match &setting.value {
            Value::Bool(value) => return *value,
            Value::Text(text) if setting.file.is_none() => {
                if let Some((_, value)) = TRUTHS.iter().find(|(word, _)| word == text) {
                    return *value;
                }
                self.wrong(&setting.origin, key, format!("must be true or false, not {text:?}"));
            }
            _ => self.wrong_kind(&setting, key, "true or false"),
        }
        false
    }

    /// One of some words.
    pub(super) fn choice<T: Copy + Default>(&mut self, key: &str, choices: &[(&str, T)]) -> T {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let wanted = format!("one of {}", words.join(", "));
        let find = |text: &str| choices.iter().find(|(word, _)| *word == text).map(|(_, it)| *it);
        self.parsed(key, &wanted, find).map(|said| said.value).unwrap_or_default()
    }

    /// A list of texts, at most `most` of them.
    pub(super) fn texts(&mut self, key: &str, most: usize) -> Vec<Said<String>> {
        let Some(setting) = self.take(key) else { return Vec::new() };
        let list = match &setting.value {
            Value::Null => Vec::new(),
            Value::List(items) => self.items(key, items, &setting),
            Value::Text(text) if setting.file.is_none() => split(text, &setting.origin),
            _ => {
                self.wrong_kind(&setting, key, "a list");
                Vec::new()
            }
        };
        if list.len() > most {
            let message = format!("must not have more than {most} entries, has {}", list.len());
            self.wrong(&setting.origin, key, message);
        }
        list
    }

    /// A value with a shape of its own, or null.
    pub(super) fn document<T: serde::de::DeserializeOwned>(
        &mut self,
        key: &str,
        wanted: &str,
    ) -> Option<T> {
        let setting = self.take(key)?;
        let json = match &setting.value {
            Value::Null => return None,
            // By a variable it is JSON.
            Value::Text(text) if setting.file.is_none() => serde_json::from_str(text).ok(),
            value => Some(value.to_json()),
        };
        let Some(json) = json else {
            self.wrong_kind(&setting, key, wanted);
            return None;
        };
        match serde_json::from_value(json) {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong(&setting.origin, key, format!("must be {wanted}: {error}"));
                None
            }
        }
    }

    /// A path, or a value with a shape of its own, which a variable gives as JSON; or null.
    pub(super) fn path_or_document(&mut self, key: &str) -> Option<serde_json::Value> {
        let setting = self.take(key)?;
        match &setting.value {
            Value::Null => None,
            Value::Text(text) if setting.file.is_none() && text.starts_with(['[', '{']) => {
                let json = serde_json::from_str(text);
                if let Err(error) = &json {
                    self.wrong(&setting.origin, key, format!("is not valid JSON: {error}"));
                }
                json.ok()
            }
            value => Some(value.to_json()),
        }
    }

    fn items(
        &mut self,
        key: &str,
        items: &[super::tree::Node],
        setting: &Setting,
    ) -> Vec<Said<String>> {
        let mut list = Vec::new();
        for item in items {
            let origin = setting
                .file
                .as_ref()
                .map_or_else(|| setting.origin.clone(), |file| place(file, &item.referenced));
            match &item.value {
                Value::Text(value) => list.push(Said { value: value.clone(), origin }),
                other => {
                    let message = format!("must be text in quotes, not {}", other.kind());
                    self.wrong(&origin, key, message);
                }
            }
        }
        list
    }
}

/// The entries of a list in a variable.
fn split(text: &str, origin: &Origin) -> Vec<Said<String>> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries.map(|entry| Said { value: entry.to_owned(), origin: origin.clone() }).collect()
}
