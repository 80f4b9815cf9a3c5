//! From the file as typed to rules checked and ready.

use crate::set::Parts;
use crate::{NoMatch, Problems, RuleFile};

pub(crate) fn compile(_file: &RuleFile) -> Result<Parts, Problems> {
    Ok(Parts {
        rules: Vec::new(),
        default_rule: None,
        deny: crate::lists::List::default(),
        allow: crate::lists::List::default(),
        tiers: crate::tiers::Tiers::default(),
        no_match: NoMatch::Allow,
        digest: 0,
    })
}

pub(crate) fn read_and_compile(text: &str, source: &str) -> Result<Parts, Problems> {
    compile(&RuleFile::parse(text, source)?)
}
