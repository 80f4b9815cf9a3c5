//! What models cost: a price file, or a list in the configuration.

use std::path::{Path, PathBuf};

use tollgate_policy::Problems;
use tollgate_policy::prices::PriceTable;

use super::read::Reader;

/// The values of `unpriced`.
const REJECT: &str = "reject";
const DEFAULT_PRICE: &str = "default_price";

/// Where prices come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PricesConfig {
    /// Nothing has a price.
    #[default]
    None,
    /// A price file.
    File(PathBuf),
    /// The configuration itself, as a price file in JSON.
    Inline(String),
}

/// Why prices cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PricesError {
    /// The file cannot be read.
    #[error("cannot read the price file {path}: {error}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The prices are wrong.
    #[error("the prices are wrong:\n{0}")]
    Wrong(#[from] Problems),
}

impl PricesConfig {
    /// The price table.
    pub fn load(&self) -> Result<PriceTable, PricesError> {
        Ok(match self {
            Self::None => PriceTable::default(),
            Self::File(path) => PriceTable::parse(&read(path)?, &path.display().to_string())?,
            Self::Inline(text) => PriceTable::parse(text, "prices")?,
        })
    }

    /// A key of the configuration, as it was given.
    pub(super) fn shown(&self, key: &str) -> serde_json::Value {
        let given = match self {
            Self::File(path) if key == "prices" => Some(path.display().to_string().into()),
            Self::None | Self::File(_) => None,
            Self::Inline(text) => {
                let file: Option<serde_json::Value> = serde_json::from_str(text).ok();
                file.and_then(|file| file.get(key).cloned())
            }
        };
        let reject = || if key == "unpriced" { REJECT.into() } else { serde_json::Value::Null };
        given.unwrap_or_else(reject)
    }
}

fn read(path: &Path) -> Result<String, PricesError> {
    super::read_file(path).map_err(|error| PricesError::Unreadable { path: path.to_owned(), error })
}

/// Checks `prices`, `unpriced` and `default_price`.
pub(super) fn check(reader: &mut Reader) -> PricesConfig {
    let origin = reader.origin("prices");
    let unpriced_origin = reader.origin("unpriced");
    let unpriced: String = reader
        .parsed("unpriced", "reject or default_price", |text| {
            [REJECT, DEFAULT_PRICE].contains(&text).then(|| text.to_owned())
        })
        .map(|said| said.value)
        .unwrap_or_default();
    let default_price: Option<serde_json::Value> =
        reader.document("default_price", "a price without a model");
    let given = reader.path_or_document("prices");
    let is_stated = unpriced == DEFAULT_PRICE || default_price.is_some();
    let list = match given {
        Some(serde_json::Value::String(path)) if !path.is_empty() => {
            if let Some(origin) = unpriced_origin.filter(|_| is_stated) {
                let message = "belongs into the price file, because prices names one";
                reader.wrong(&origin, "unpriced", message);
            }
            return PricesConfig::File(path.into());
        }
        None if !is_stated => return PricesConfig::None,
        None => serde_json::Value::Array(Vec::new()),
        Some(list) => list,
    };
    let file = serde_json::json!({
        "prices": list, "unpriced": unpriced, "default_price": default_price,
    });
    let text = file.to_string();
    if let (Err(Problems(problems)), Some(origin)) = (PriceTable::parse(&text, "prices"), origin) {
        for problem in problems {
            let field = problem.field.unwrap_or_else(|| "prices".to_owned());
            reader.wrong(&origin, &field, problem.message);
        }
    }
    PricesConfig::Inline(text)
}
