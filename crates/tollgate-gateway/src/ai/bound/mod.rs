//! An upper bound of the tokens of a text, for `cl100k_base` and `o200k_base`, without their vocabularies.
//!
//! Both tokenizers first cut a text into pieces (a word with the space before it, up to three digits, a run of
//! punctuation) and then merge the bytes of each piece, until no two neighbours make up an entry of the vocabulary.
//! Two facts follow, and the bound rests on them:
//!
//! 1. A piece that is an entry of the vocabulary is one token.
//! 2. In the tokens of a piece, no two neighbours make up an entry. So the longest sequence of byte strings that obeys
//!    this for *some* of the entries has at least as many elements as the piece has tokens.
//!
//! `table` holds the entries that both vocabularies have, `merge` finds the longest sequence, and `pieces` cuts the
//! text where both tokenizers are sure to cut it. Where they differ or where it is unsure, rule 2 is not applied across
//! that place, which can only raise the bound. So the bound holds for every text, as long as the tables are right, which
//! a test compares with the vocabularies.

mod merge;
mod pieces;
mod table;

pub use pieces::upper_bound;
pub(crate) use table::warm;
