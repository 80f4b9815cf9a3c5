//! The table of request attributes.
//!
//! Everything that names an attribute follows from it: the fields of `/rate-limit/allow`, the fields of
//! `AllowRequest`, the headers of `/rate-limit/auth`, the flags of `tollgate check`, the lists of `applies_to`,
//! the JSON Schema and the `OpenAPI` document. A new attribute is one entry here, a field of the same number in
//! proto/tollgate/v1, and a builder method in the clients.

/// A list of `applies_to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliesTo {
    /// Its name.
    pub list: &'static str,
    /// Its place in a rule.
    pub path: &'static str,
    /// What it holds.
    pub help: &'static str,
}

/// Declares [`Known`] from its entries.
macro_rules! known_attributes {
    (@list) => { None };
    (@list $list:literal, $about:literal) => {
        Some(AppliesTo { list: $list, path: concat!("applies_to.", $list), help: $about })
    };
    ($(
        #[doc = $help:literal]
        $variant:ident {
            name: $name:literal, field: $field:literal, number: $number:literal,
            header: $header:literal, flag: $flag:literal,
            applies_to: [$($list:literal, $about:literal $(,)?)?],
        }
    )+) => {
        /// The attributes that have a name of their own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Known {
            $(#[doc = $help] $variant,)+
        }

        impl Known {
            /// Every known attribute.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$variant),+];

            /// How many there are.
            pub const COUNT: usize = [$($number),+].len();

            /// The name in rules, queries and descriptors.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The field of a request in JSON.
            pub const fn field(self) -> &'static str {
                match self { $(Self::$variant => $field),+ }
            }

            /// The number of the field of a request in gRPC.
            pub const fn number(self) -> u32 {
                match self { $(Self::$variant => $number),+ }
            }

            /// The header of `/rate-limit/auth`.
            pub const fn header(self) -> &'static str {
                match self { $(Self::$variant => $header),+ }
            }

            /// The flag of the command line, without its dashes.
            pub const fn flag(self) -> &'static str {
                match self { $(Self::$variant => $flag),+ }
            }

            /// What it is, in a sentence.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help),+ }
            }

            /// The list of `applies_to` that constrains it. An address has none: the allow and deny lists name
            /// addresses.
            pub const fn applies_to(self) -> Option<AppliesTo> {
                match self {
                    $(Self::$variant => known_attributes!(@list $($list, $about)?),)+
                }
            }

            /// The known attribute of this name.
            #[inline]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The known attribute of this field of JSON.
            #[inline]
            pub fn from_field(field: &str) -> Option<Self> {
                match field {
                    $($field => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The known attribute of this field of gRPC.
            #[inline]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

known_attributes! {
    #[doc = "The user."]
    UserId {
        name: "user_id", field: "userId", number: 1,
        header: "x-tollgate-user-id", flag: "user",
        applies_to: ["users", "Users."],
    }
    #[doc = "The tenant."]
    TenantId {
        name: "tenant_id", field: "tenantId", number: 4,
        header: "x-tollgate-tenant-id", flag: "tenant",
        applies_to: ["tenants", "Tenants."],
    }
    #[doc = "The API key."]
    ApiKey {
        name: "api_key", field: "apiKey", number: 3,
        header: "x-tollgate-api-key", flag: "api-key",
        applies_to: ["api_keys", "API keys."],
    }
    #[doc = "The client's address, v4 or v6."]
    Ip {
        name: "ip", field: "ip", number: 9,
        header: "x-tollgate-ip", flag: "ip",
        applies_to: [],
    }
    #[doc = "The model."]
    ModelId {
        name: "model_id", field: "modelId", number: 2,
        header: "x-tollgate-model-id", flag: "model",
        applies_to: ["models", "Models."],
    }
    #[doc = "The class of the model."]
    ModelTier {
        name: "model_tier", field: "modelTier", number: 5,
        header: "x-tollgate-model-tier", flag: "model-tier",
        applies_to: ["model_tiers", "Classes of models."],
    }
    #[doc = "INTERNAL, PARTNER, EXTERNAL or another class of clients."]
    ClientType {
        name: "client_type", field: "clientType", number: 6,
        header: "x-tollgate-client-type", flag: "client-type",
        applies_to: ["client_types", "Such as INTERNAL, PARTNER, EXTERNAL."],
    }
    #[doc = "The caller's plan; overrides what the rule file says of the client."]
    Tier {
        name: "tier", field: "tier", number: 10,
        header: "x-tollgate-tier", flag: "tier",
        applies_to: ["user_tiers", "Plans."],
    }
    #[doc = "The path of the request; a query is ignored."]
    Endpoint {
        name: "endpoint", field: "endpoint", number: 7,
        header: "x-tollgate-endpoint", flag: "endpoint",
        applies_to: [
            "endpoints",
            "Path patterns: literal segments, * (one segment, or the rest at the end), {name} (captured).",
        ],
    }
    #[doc = "The HTTP method."]
    Method {
        name: "method", field: "method", number: 8,
        header: "x-tollgate-method", flag: "method",
        applies_to: ["methods", "HTTP methods."],
    }
    #[doc = "The domain, or host, of the request."]
    Domain {
        name: "domain", field: "domain", number: 11,
        header: "x-tollgate-domain", flag: "domain",
        applies_to: ["domains", "Domains."],
    }
}

impl Known {
    /// The place in a rule that constrains it.
    pub(crate) fn rule_path(self) -> &'static str {
        self.applies_to().map_or("applies_to", |list| list.path)
    }

    /// True for the attributes that say who is calling.
    pub const fn is_identity(self) -> bool {
        matches!(self, Self::UserId | Self::TenantId | Self::ApiKey | Self::Ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_attribute() {
        for (place, known) in Known::ALL.into_iter().enumerate() {
            assert_eq!(known as usize, place);
            assert_eq!(Known::from_name(known.name()), Some(known));
            assert_eq!(Known::from_field(known.field()), Some(known));
            assert_eq!(Known::from_number(known.number()), Some(known));
            assert_eq!(known.header(), format!("x-tollgate-{}", known.name().replace('_', "-")));
        }
    }
}
