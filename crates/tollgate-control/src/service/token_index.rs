//! Which tokens may be right, known without asking the database: a flood of wrong ones costs a look into a set, and a
//! right one among them is always checked.

use std::collections::HashSet;

use serde_json::Value;
use tokio::sync::RwLock;

use super::Control;
use crate::token::{MAX_TOKEN_BYTES, digest};
use crate::{ControlError, EntryFilter, Kind, Millis, Page};

/// The most tokens that are indexed. Where there are more, every token may be right.
const MAX_INDEXED_TOKENS: usize = 100_000;

/// An index that does not know a token is read again after this long: another node may have created it.
const REFRESH_AFTER_MS: Millis = 1_000;

const PAGE_ENTRIES: u32 = 1_000;

/// The digests of all tokens.
#[derive(Debug, Default)]
pub(super) struct TokenIndex(RwLock<Indexed>);

#[derive(Debug, Default)]
struct Indexed {
    digests: HashSet<String>,
    /// Whether there are more tokens than are indexed.
    is_partial: bool,
    read_at: Option<Millis>,
}

impl TokenIndex {
    /// Has it read again before it denies a token: this node may have created one.
    pub(super) async fn invalidate(&self) {
        self.0.write().await.read_at = None;
    }
}

impl Indexed {
    /// Whether this may be a token; `None` where the index is too old to know.
    fn knows(&self, digest: &str, now: Millis) -> Option<bool> {
        let age = self.read_at.map(|at| now.saturating_sub(at));
        if self.is_partial || self.digests.contains(digest) {
            return age.map(|_| true);
        }
        age.filter(|age| (0..REFRESH_AFTER_MS).contains(age)).map(|_| false)
    }
}

impl Control {
    /// Whether [`Control::authenticate`] may know this token. `false` is certain but for tokens that another node has
    /// created within the last second.
    pub async fn may_be_token(&self, token: &str, now: Millis) -> Result<bool, ControlError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Ok(false);
        }
        let given = digest(token);
        if let Some(known) = self.tokens.0.read().await.knows(&given, now) {
            return Ok(known);
        }
        // One reads, the others wait for it.
        let mut indexed = self.tokens.0.write().await;
        if let Some(known) = indexed.knows(&given, now) {
            return Ok(known);
        }
        *indexed = self.read_index(now).await?;
        Ok(indexed.is_partial || indexed.digests.contains(&given))
    }

    async fn read_index(&self, now: Millis) -> Result<Indexed, ControlError> {
        let mut indexed = Indexed { read_at: Some(now), ..Indexed::default() };
        let mut page = Page { after: None, limit: PAGE_ENTRIES };
        loop {
            let entries =
                self.repository().list(Kind::Token, &EntryFilter::default(), &page).await?;
            let digest = |body: &Value| body.get("digest")?.as_str().map(str::to_owned);
            indexed.digests.extend(entries.iter().filter_map(|entry| digest(&entry.body)));
            indexed.is_partial = indexed.digests.len() >= MAX_INDEXED_TOKENS;
            match entries.last() {
                Some(last) if entries.len() >= PAGE_ENTRIES as usize && !indexed.is_partial => {
                    page.after = Some(last.id.clone());
                }
                _ => return Ok(indexed),
            }
        }
    }
}
