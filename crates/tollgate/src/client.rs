//! Whom and what a request is about.

use tollgate_engine::{Amounts, MAX_ATTRIBUTES, MAX_COST, MAX_VALUE_BYTES, Refunds, Request};
use tollgate_policy::{Known, RequestPath};

use crate::Error;

/// What is known of a request: who makes it, what it asks for, and what it costs. Rules count by these attributes
/// and choose by them.
///
/// ```
/// use tollgate::Client;
///
/// let client = Client::user("ann").tenant("acme").endpoint("/reports/7").method("GET").cost(5);
/// # let _ = client;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Client<'a> {
    known: [Option<&'a str>; Known::COUNT],
    path: Option<&'a str>,
    extra: Vec<(&'a str, &'a str)>,
    cost: Option<u64>,
    tokens: Option<u64>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident => $known:ident),+ $(,)?) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(self, value: &'a str) -> Self {
            self.with(Known::$known, value)
        })+
    };
}

impl<'a> Client<'a> {
    /// A client of which nothing is known yet.
    ///
    /// ```
    /// # use tollgate::Client;
    /// let client = Client::new().api_key("k1").ip("192.0.2.7");
    /// # let _ = client;
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// A user: attribute `user_id`.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check_now(&Client::user("ann"))?.is_allowed());
    /// assert!(gate.check_now(&Client::user("bob"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn user(user_id: &'a str) -> Self {
        Self::new().with(Known::UserId, user_id)
    }

    setters! {
        /// Attribute `tenant_id`.
        ///
        /// ```
        /// # use tollgate::Client;
        /// let client = Client::user("ann").tenant("acme");
        /// # let _ = client;
        /// ```
        tenant => TenantId,
        /// Attribute `api_key`. Redis keeps a keyed hash of it only.
        ///
        /// ```
        /// # use tollgate::Client;
        /// let client = Client::new().api_key("k1");
        /// # let _ = client;
        /// ```
        api_key => ApiKey,
        /// Attribute `ip`: the address of the client.
        ///
        /// ```
        /// # use tollgate::Client;
        /// let client = Client::new().ip("192.0.2.7");
        /// # let _ = client;
        /// ```
        ip => Ip,
        /// Attribute `model_id`: the model that is asked for.
        ///
        /// ```
        /// # use tollgate::Client;
        /// let client = Client::user("ann").model("small");
        /// # let _ = client;
        /// ```
        model => ModelId,
        /// Attribute `tier`: the plan of the client, for [`Rule::tier`](crate::Rule::tier).
        ///
        /// ```
        /// # use tollgate::{Client, Gate, Quota, Rule};
        /// let rule = Rule::per("user_id").quota(Quota::per_day(1)).tier("pro", Quota::per_day(5));
        /// let gate = Gate::builder().rule(rule).build()?;
        /// assert_eq!(gate.check_now(&Client::user("ann").tier("pro"))?.remaining(), Some(4));
        /// # Ok::<(), tollgate::Error>(())
        /// ```
        tier => Tier,
        /// Attribute `client_type`, such as `INTERNAL`.
        ///
        /// ```
        /// # use tollgate::Client;
        /// let client = Client::user("ann").client_type("PARTNER");
        /// # let _ = client;
        /// ```
        client_type => ClientType,
        /// Attribute `method`: the HTTP method.
        ///
        /// ```
        /// # use tollgate::Client;
        /// let client = Client::user("ann").endpoint("/x").method("POST");
        /// # let _ = client;
        /// ```
        method => Method,
    }

    /// Attribute `endpoint`: the path of the request, as it was sent. It is normalised before rules are matched.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let rule = Rule::per("user_id").quota(Quota::per_day(0)).endpoint("/admin/*");
    /// let gate = Gate::builder().rule(rule).build()?;
    /// assert!(gate.check_now(&Client::user("ann").endpoint("/x"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::user("ann").endpoint("/x/../admin/y"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn endpoint(mut self, path: &'a str) -> Self {
        self.path = Some(path);
        self
    }

    /// Any attribute by its name, the known ones too (`user_id`, …).
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("region").quota(Quota::per_day(1))).build()?;
    /// assert!(gate.check_now(&Client::new().attribute("region", "eu"))?.is_allowed());
    /// assert!(!gate.check_now(&Client::new().attribute("region", "eu"))?.is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn attribute(mut self, name: &'a str, value: &'a str) -> Self {
        match Known::from_name(name) {
            Some(Known::Endpoint) => self.endpoint(value),
            Some(known) => self.with(known, value),
            None => {
                self.extra.push((name, value));
                self
            }
        }
    }

    /// What the request costs on rules of requests; 1 if not stated.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").quota(Quota::per_day(9))).build()?;
    /// assert_eq!(gate.check_now(&Client::user("ann").cost(5))?.remaining(), Some(4));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// What the request costs on rules of tokens; 0 if not stated.
    ///
    /// ```
    /// # use tollgate::{Client, Gate, Quota, Rule};
    /// let gate = Gate::builder().rule(Rule::per("user_id").tokens(Quota::per_day(900))).build()?;
    /// assert_eq!(gate.check_now(&Client::user("ann").tokens(600))?.remaining(), Some(300));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    fn with(mut self, known: Known, value: &'a str) -> Self {
        if let Some(place) = self.known.get_mut(known as usize) {
            *place = Some(value);
        }
        self
    }

    /// Whether it says who makes the request.
    pub(crate) fn names_identity(&self) -> bool {
        Known::ALL.into_iter().any(|known| known.is_identity() && self.value(known).is_some())
    }

    /// Whether it says nothing of the request.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.iter().all(Option::is_none) && self.path.is_none() && self.extra.is_empty()
    }

    /// The value of a known attribute.
    pub(crate) fn value(&self, known: Known) -> Option<&'a str> {
        self.known.get(known as usize).copied().flatten()
    }

    /// The path, read.
    pub(crate) fn path(&self) -> Result<Option<RequestPath<'a>>, Error> {
        let parsed = self.path.map(RequestPath::parse).transpose();
        parsed.map_err(|error| out_of_bounds("endpoint", error.to_string()))
    }

    /// The request as the engine takes it, within its bounds.
    pub(crate) fn request<'r>(
        &'r self,
        path: Option<&'r RequestPath<'_>>,
        kept: Kept,
    ) -> Result<Request<'r>, Error> {
        let (refunds, refuses_slots) = match kept {
            Kept::Nothing => (Refunds::Never, true),
            Kept::Receipts => (Refunds::Always, false),
        };
        let amounts = Amounts { cost: self.cost, tokens: self.tokens, ..Amounts::NONE };
        let mut request = Request { amounts, refunds, refuses_slots, ..Request::default() };
        if self.cost.max(self.tokens) > Some(MAX_COST) {
            return Err(out_of_bounds("cost", format!("must not be larger than {MAX_COST}")));
        }
        for (known, value) in Known::ALL.into_iter().zip(self.known) {
            if let Some(value) = value {
                request.attributes.set(known, bounded(known.name(), value)?);
            }
        }
        if self.extra.len() > MAX_ATTRIBUTES {
            let problem = format!("must not be more than {MAX_ATTRIBUTES}");
            return Err(out_of_bounds("attributes", problem));
        }
        for (name, value) in &self.extra {
            request.attributes.push_extra(bounded("name", name)?, bounded(name, value)?);
        }
        if let Some(path) = path {
            request.attributes.set_path(path);
        }
        Ok(request)
    }
}

/// What the caller keeps of an admitted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Nothing: charges are final, and a slot would never be given back.
    Nothing,
    /// Its receipts, to settle or release it.
    Receipts,
}

fn bounded<'a>(name: &str, value: &'a str) -> Result<&'a str, Error> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(value);
    }
    let problem = format!("must not be longer than {MAX_VALUE_BYTES} bytes");
    Err(out_of_bounds(name, problem))
}

#[cold]
fn out_of_bounds(attribute: &str, problem: String) -> Error {
    Error::Client { attribute: attribute.chars().take(MAX_VALUE_BYTES).collect(), problem }
}
