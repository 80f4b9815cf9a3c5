//! Follows a chain, link by link, and names the first one that is broken.

use std::collections::BTreeSet;

use super::{ChainHead, ChainedChange, EXPORT_FORMAT, Genesis, Link, PublicKey, RemovedLinks};

/// The most keys that a chain is reported to be signed by.
const MAX_KEYS: usize = 64;

/// What is wrong with a chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A change is not what was hashed, or does not follow the one before it.
    #[error("change {number} (record {id}) was altered, or does not follow the change before it")]
    Change {
        /// Its number in the chain.
        number: i64,
        /// Its number in the log.
        id: i64,
    },
    /// Changes are not there, and nothing signed says that they were removed.
    #[error("changes {first} to {last} are missing")]
    Missing {
        /// The first.
        first: i64,
        /// The last.
        last: i64,
    },
    /// A statement about removed changes does not fit the chain.
    #[error("changes {first} to {last} were removed, but not from this chain")]
    Removed {
        /// The first.
        first: i64,
        /// The last.
        last: i64,
    },
    /// A signature is missing or wrong, or made with a key that is not trusted.
    #[error("the signature of {what} {cause}")]
    Signature {
        /// What is signed.
        what: String,
        /// What is wrong with it.
        cause: &'static str,
    },
    /// The chain does not end where its head says.
    #[error("the chain ends with change {last}, and its signed head is change {head}")]
    Head {
        /// The last change.
        last: i64,
        /// The number of the head.
        head: i64,
    },
    /// The head that was noted earlier is not part of the chain.
    #[error("change {number} is not the one that was noted: the chain was replaced or cut off")]
    NotedHead {
        /// Its number.
        number: i64,
    },
    /// A record was written without the chain.
    #[error("record {id} is not part of the chain")]
    Unchained {
        /// Its number in the log.
        id: i64,
    },
    /// Records from before the chain were altered or are missing.
    #[error("the records from before the chain were altered: {0}")]
    Earlier(String),
    /// The links are not those of one export.
    #[error("this is no whole export: {0}")]
    Form(&'static str),
}

/// The end of a chain as it was noted earlier, outside of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedHead {
    /// Its number.
    pub number: i64,
    /// Its hash.
    pub hash: String,
}

impl NotedHead {
    /// Reads `NUMBER:HASH`.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, hash) = text.split_once(':')?;
        let number = number.parse().ok().filter(|number| *number > 0)?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hash.then(|| Self { number, hash: hash.to_ascii_lowercase() })
    }
}

/// What an unbroken chain holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Which database it is.
    pub installation: String,
    /// Changes that were checked.
    pub changes: i64,
    /// Changes that were removed to keep a bound.
    pub removed: i64,
    /// Records from before the chain that are there.
    pub earlier: i64,
    /// Whether these are all of them, and unaltered. If some were removed, the others cannot be checked.
    pub earlier_are_checked: bool,
    /// The end.
    pub head: ChainHead,
    /// The keys that signed it.
    pub keys: Vec<String>,
    /// Whether the head that was noted was found. If not, none was given, or it is among the changes that were removed.
    pub has_noted_head: bool,
}

/// Follows a chain.
#[derive(Debug)]
pub struct Verifier {
    trusted: Vec<PublicKey>,
    noted: Option<NotedHead>,
    has_noted_head: bool,
    start: Option<(String, Genesis)>,
    head: Option<ChainHead>,
    /// The number and the hash of the last link.
    number: i64,
    hash: String,
    changes: i64,
    removed: i64,
    earlier: i64,
    earlier_digest: String,
    keys: BTreeSet<String>,
}

impl Verifier {
    /// With the keys that are trusted (none: any key, which proves only that all of it was signed by its owner), and a head
    /// that was noted earlier.
    pub fn new(trusted: Vec<PublicKey>, noted: Option<NotedHead>) -> Self {
        Self {
            trusted,
            noted,
            has_noted_head: false,
            start: None,
            head: None,
            number: 0,
            hash: String::new(),
            changes: 0,
            removed: 0,
            earlier: 0,
            earlier_digest: String::new(),
            keys: BTreeSet::new(),
        }
    }

    /// Takes the next link.
    pub fn push(&mut self, link: Link) -> Result<(), Broken> {
        if self.head.is_some() {
            return Err(Broken::Form("something follows the head"));
        }
        match link {
            Link::Start { format, installation, genesis } => {
                self.begin(format, installation, &genesis)
            }
            _ if self.start.is_none() => Err(Broken::Form("it does not begin with its start")),
            Link::Earlier(record) => self.earlier(&record),
            Link::Change(change) => self.change(&change),
            Link::Removed(removed) => self.removed(&removed),
            Link::Head(head) => self.end(head),
        }
    }

    fn begin(&mut self, format: u32, installation: String, given: &Genesis) -> Result<(), Broken> {
        if format != EXPORT_FORMAT {
            return Err(Broken::Form("it has a format that this version does not know"));
        }
        if self.start.is_some() {
            return Err(Broken::Form("it has two starts"));
        }
        let genesis =
            Genesis::new(&installation, given.earlier, given.last_id, given.digest.clone());
        if genesis != *given {
            return Err(Broken::Earlier("the genesis does not have the hash it says".to_owned()));
        }
        self.hash.clone_from(&genesis.hash);
        self.start = Some((installation, genesis));
        Ok(())
    }

    fn installation(&self) -> &str {
        self.start.as_ref().map_or("", |(installation, _)| installation)
    }

    fn earlier(&mut self, record: &ChainedChange) -> Result<(), Broken> {
        let last = self.start.as_ref().map_or(0, |(_, genesis)| genesis.last_id);
        if record.id > last {
            return Err(Broken::Unchained { id: record.id });
        }
        self.earlier += 1;
        self.earlier_digest = record.digest_after(&self.earlier_digest);
        Ok(())
    }

    fn change(&mut self, change: &ChainedChange) -> Result<(), Broken> {
        let expected = self.number.saturating_add(1);
        if change.number > expected {
            return Err(Broken::Missing { first: expected, last: change.number - 1 });
        }
        let altered = Broken::Change { number: change.number, id: change.id };
        if change.number < expected || change.hash_after(&self.hash) != change.hash {
            return Err(altered);
        }
        self.changes += 1;
        self.advance(change.number, &change.hash)
    }

    fn removed(&mut self, removed: &RemovedLinks) -> Result<(), Broken> {
        let expected = self.number.saturating_add(1);
        let RemovedLinks { first, last, .. } = *removed;
        if first > expected {
            return Err(Broken::Missing { first: expected, last: first - 1 });
        }
        // Between two pages of an export more may have been removed: then it begins before this place.
        let follows = first < expected || removed.previous_hash == self.hash;
        if first < 1 || last < expected || !follows {
            return Err(Broken::Removed { first, last });
        }
        let what = format!("the removal of changes {first} to {last}");
        self.check(&removed.signed, &removed.statement(self.installation()), what)?;
        self.removed = self.removed.saturating_add(last - expected + 1);
        self.advance(last, &removed.hash)
    }

    /// The chain reaches the link with this number.
    fn advance(&mut self, number: i64, hash: &str) -> Result<(), Broken> {
        self.number = number;
        hash.clone_into(&mut self.hash);
        if let Some(noted) = self.noted.as_ref().filter(|noted| noted.number == number) {
            if noted.hash != hash {
                return Err(Broken::NotedHead { number });
            }
            self.has_noted_head = true;
        }
        Ok(())
    }

    fn end(&mut self, head: ChainHead) -> Result<(), Broken> {
        if head.number != self.number || head.hash != self.hash {
            return Err(Broken::Head { last: self.number, head: head.number });
        }
        // A chain that has not begun may have no signature.
        if head.number > 0 || !head.signed.is_empty() {
            let statement = head.statement(self.installation());
            self.check(&head.signed, &statement, "the head".to_owned())?;
        }
        if let Some(noted) = self.noted.as_ref().filter(|noted| noted.number > head.number) {
            return Err(Broken::NotedHead { number: noted.number });
        }
        if self.earlier < head.earlier_left {
            let missing = head.earlier_left - self.earlier;
            return Err(Broken::Earlier(format!("{missing} of them are missing")));
        }
        self.head = Some(head);
        Ok(())
    }

    fn check(
        &mut self,
        signed: &super::Signed,
        statement: &[u8],
        what: String,
    ) -> Result<(), Broken> {
        if signed.is_empty() {
            return Err(Broken::Signature { what, cause: "is missing: the node had no key" });
        }
        let Some(key) = signed.key(statement) else {
            return Err(Broken::Signature { what, cause: "is wrong" });
        };
        if !self.trusted.is_empty() && !self.trusted.contains(&key) {
            return Err(Broken::Signature {
                what,
                cause: "is made with a key that is not trusted",
            });
        }
        if self.keys.len() < MAX_KEYS {
            self.keys.insert(key.to_string());
        }
        Ok(())
    }

    /// What the chain holds, when all links were taken.
    pub fn finish(self) -> Result<Verified, Broken> {
        let Some((installation, genesis)) = self.start else {
            return Err(Broken::Form("it is empty"));
        };
        let head = self.head.ok_or(Broken::Form("it has no head: it was cut off"))?;
        let is_complete = self.earlier == genesis.earlier;
        if is_complete && self.earlier_digest != genesis.digest {
            return Err(Broken::Earlier("their digest is another one".to_owned()));
        }
        Ok(Verified {
            installation,
            changes: self.changes,
            removed: self.removed,
            earlier: self.earlier,
            earlier_are_checked: is_complete,
            head,
            keys: self.keys.into_iter().collect(),
            has_noted_head: self.has_noted_head,
        })
    }
}
