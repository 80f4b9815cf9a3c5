//! Figures by name, for a bounded number of names.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use tollgate_policy::terminal::is_obeyed;

/// A value for each name. What comes after the table is full goes to one value for all others.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: HashTable<u32>,
    hasher: RandomState,
    entries: Vec<(Box<str>, T)>,
    max: usize,
    pub(crate) others: T,
    /// Whether there were more names than the table holds.
    pub(crate) is_full: bool,
}

impl<T: Default> Table<T> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            places: HashTable::new(),
            hasher: RandomState::default(),
            entries: Vec::new(),
            max,
            others: T::default(),
            is_full: false,
        }
    }

    /// The place of a name; `None` if the table is full and does not have it.
    pub(crate) fn place(&mut self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        let (entries, hasher) = (&self.entries, &self.hasher);
        let name_at = |place: &u32| entries.get(*place as usize).map_or("", |(name, _)| name);
        if let Some(place) = self.places.find(hash, |place| name_at(place) == name) {
            return Some(*place);
        }
        if self.entries.len() >= self.max {
            self.is_full = true;
            return None;
        }
        let place = self.entries.len() as u32;
        self.places.insert_unique(hash, place, |place| hasher.hash_one(name_at(place)));
        self.entries.push((name.into(), T::default()));
        Some(place)
    }

    /// The value at a place, or that of all others.
    pub(crate) fn at(&mut self, place: Option<u32>) -> &mut T {
        match place.and_then(|place| self.entries.get_mut(place as usize)) {
            Some((_, value)) => value,
            None => &mut self.others,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.entries.iter().map(|(name, value)| (&**name, value))
    }
}

/// Text without what a terminal would obey or what hides other text: control characters and those that
/// change the direction of writing.
pub(crate) fn sanitized(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_obeyed(letter) {
            let _ = write!(safe, "\\u{{{:x}}}", letter as u32);
        } else {
            safe.push(letter);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_counts_the_others_together() {
        let mut table = Table::<u64>::new(2);
        for name in ["a", "b", "c", "a", "d"] {
            let place = table.place(name);
            *table.at(place) += 1;
        }
        assert_eq!(table.iter().collect::<Vec<_>>(), [("a", &2), ("b", &1)]);
        assert_eq!((table.others, table.is_full, table.len()), (2, true, 2));
    }

    #[test]
    fn controls_are_shown_not_obeyed() {
        assert_eq!(sanitized("a\u{1b}[2Jb\u{202e}é"), "a\\u{1b}[2Jb\\u{202e}é");
    }
}
