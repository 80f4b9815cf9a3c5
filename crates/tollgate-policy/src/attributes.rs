//! What is known of a request.

use smallvec::SmallVec;

use crate::RequestPath;

/// The attributes that have a name of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Known {
    /// The user.
    UserId,
    /// The tenant.
    TenantId,
    /// The API key.
    ApiKey,
    /// The client's address.
    Ip,
    /// The model asked for.
    ModelId,
    /// The class of the model.
    ModelTier,
    /// INTERNAL, PARTNER, EXTERNAL or the like.
    ClientType,
    /// The plan of the caller.
    Tier,
    /// The path, normalised.
    Endpoint,
    /// The HTTP method.
    Method,
    /// The domain of an Envoy descriptor, or the host.
    Domain,
}

impl Known {
    /// How many there are.
    pub const COUNT: usize = 11;

    /// Every known attribute.
    pub const ALL: [Self; Self::COUNT] = [
        Self::UserId,
        Self::TenantId,
        Self::ApiKey,
        Self::Ip,
        Self::ModelId,
        Self::ModelTier,
        Self::ClientType,
        Self::Tier,
        Self::Endpoint,
        Self::Method,
        Self::Domain,
    ];

    /// The name in rules and requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserId => "user_id",
            Self::TenantId => "tenant_id",
            Self::ApiKey => "api_key",
            Self::Ip => "ip",
            Self::ModelId => "model_id",
            Self::ModelTier => "model_tier",
            Self::ClientType => "client_type",
            Self::Tier => "tier",
            Self::Endpoint => "endpoint",
            Self::Method => "method",
            Self::Domain => "domain",
        }
    }

    /// The known attribute of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// True for the attributes that say who is calling.
    pub const fn is_identity(self) -> bool {
        matches!(self, Self::UserId | Self::TenantId | Self::ApiKey | Self::Ip)
    }
}

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

    /// Adds a further attribute. One that has a known name is set as such, so that no name can
    /// have two values; of several with one free name the first counts.
    pub fn push_extra(&mut self, name: &'a str, value: &'a str) {
        match Known::from_name(name) {
            Some(known) => self.set(known, value),
            None if value.is_empty() => {}
            None => self.extra.push((name, value)),
        }
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
        Attributes { known: self.known, extra, other_endpoints: self.other_endpoints }
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
    fn names_and_places_agree() {
        for (place, known) in Known::ALL.into_iter().enumerate() {
            assert_eq!(known as usize, place);
            assert_eq!(Known::from_name(known.name()), Some(known));
        }
    }

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
