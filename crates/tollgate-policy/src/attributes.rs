//! What is known of a request.

use smallvec::SmallVec;

use crate::{Known, RequestPath};

/// The attributes of one request, borrowed from it. An empty value is no value.
///
/// The endpoint must be normalised ([`Attributes::set_path`]) and the tier resolved
/// ([`crate::RuleSet::tier_of`]) before rules are resolved: the resolver compares what it is given.
#[derive(Debug, Clone, Default)]
pub struct Attributes<'a> {
    known: [Option<&'a str>; Known::COUNT],
    extra: SmallVec<[(&'a str, &'a str); 4]>,
    /// The other readings of the endpoint.
    other_endpoints: &'a [String],
    /// The whole texts of further attributes whose values stand for longer ones, by name.
    whole_values: &'a [(String, String)],
}

impl<'a> Attributes<'a> {
    /// The value of a known attribute.
    #[inline]
    pub fn get(&self, known: Known) -> Option<&'a str> {
        self.known.get(known as usize).copied().flatten()
    }

    /// Sets a known attribute; an empty value clears it.
    #[inline]
    pub fn set(&mut self, known: Known, value: &'a str) {
        if let Some(place) = self.known.get_mut(known as usize) {
            *place = (!value.is_empty()).then_some(value);
        }
    }

    /// Sets the endpoint, in all readings of its encoded slashes.
    pub fn set_path(&mut self, path: &'a RequestPath<'_>) {
        self.set(Known::Endpoint, path.endpoint());
        self.other_endpoints = path.others();
    }

    /// The other readings of the endpoint ([`RequestPath::others`]).
    #[inline]
    pub const fn other_endpoints(&self) -> &'a [String] {
        self.other_endpoints
    }

    /// The same request with each of the other readings of its endpoint, and with that one only.
    pub(crate) fn other_readings(&self) -> impl Iterator<Item = Self> {
        self.other_endpoints.iter().map(|endpoint| {
            let mut other = Self { other_endpoints: &[], ..self.clone() };
            other.set(Known::Endpoint, endpoint);
            other
        })
    }

    /// Sets the whole texts of further attributes whose values are shortened. What a rule applies to is compared with
    /// these, and counters are named by the short values.
    pub const fn set_whole_values(&mut self, whole_values: &'a [(String, String)]) {
        self.whole_values = whole_values;
    }

    /// The value of a further attribute that rules are compared with.
    #[inline]
    pub(crate) fn compared_extra(&self, name: &str) -> Option<&'a str> {
        let whole = self.whole_values.iter().find(|(key, _)| key == name);
        whole.map(|(_, value)| value.as_str()).or_else(|| self.extra(name))
    }

    /// Adds a further attribute. One that has a known name is set as such, so that no name can
    /// have two values; of several with one free name the first counts.
    pub fn push_extra(&mut self, name: &'a str, value: &'a str) {
        match Known::from_name(name) {
            Some(known) => self.set(known, value),
            None if value.is_empty() => {}
            None => self.extra.push((name, value)),
        }
    }

    /// Sets a further attribute, whatever the request said of it.
    pub(crate) fn replace_extra(&mut self, name: &'a str, value: &'a str) {
        self.extra.retain(|(known, _)| *known != name);
        self.push_extra(name, value);
    }

    /// The value of the attribute of this name, known or further.
    pub fn by_name(&self, name: &str) -> Option<&'a str> {
        match Known::from_name(name) {
            Some(known) => self.get(known),
            None => self.extra(name),
        }
    }

    /// The further attributes, in the order they were added.
    pub fn extras(&self) -> &[(&'a str, &'a str)] {
        &self.extra
    }

    /// The same for a shorter time, which the compiler does not grant by itself.
    pub(crate) fn shortened<'s>(&self) -> Attributes<'s>
    where
        'a: 's,
    {
        let extra = self.extra.iter().map(|(name, value)| (*name, *value)).collect();
        let Self { known, other_endpoints, whole_values, .. } = *self;
        Attributes { known, extra, other_endpoints, whole_values }
    }

    /// The value of a further attribute.
    #[inline]
    pub(crate) fn extra(&self, name: &str) -> Option<&'a str> {
        self.extra.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// Who is calling: the first present of API key, user and address, with the name of its kind.
    pub fn client(&self) -> Option<(&'static str, &'a str)> {
        [Known::ApiKey, Known::UserId, Known::Ip]
            .into_iter()
            .find_map(|known| self.get(known).map(|value| (known.name(), value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_cannot_shadow_a_known_one_and_empty_is_absent() {
        let mut request = Attributes::default();
        request.push_extra("user_id", "ann");
        request.push_extra("region", "eu");
        request.push_extra("region", "us");
        request.set(Known::ApiKey, "");
        assert_eq!(request.get(Known::UserId), Some("ann"));
        assert_eq!(request.by_name("region"), Some("eu"));
        assert_eq!(request.client(), Some(("user_id", "ann")));
    }
}
