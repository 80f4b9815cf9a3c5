//! Where a counter is kept, and how closely the nodes that share it agree.

/// How exact a shared counter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// Every decision is made on the shared counter.
    #[default]
    Strict,
    /// Nodes spend chunks that they took ahead.
    Leased {
        /// How much may be out on lease over all nodes, in millionths of the quota.
        max_overshoot_ppm: u32,
    },
    /// Every node counts alone, on its share of the quota.
    Local,
}

/// What a counter's charge becomes when its store does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The node decides on its share of the quota.
    #[default]
    Local,
    /// It passes.
    Open,
    /// It is refused.
    Closed,
}

/// Where a counter is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Home {
    /// Which of the named stores; 0 is the first, or the only one.
    pub store: u8,
    /// Which part of the key a cluster spreads counters by; `None`: all of a rule stay together.
    pub partition: Option<u8>,
    /// A bit for every part of the key that is a secret and is kept as a keyed hash only.
    pub secret_parts: u32,
    /// A bit for every secret part that is given as that hash already.
    pub concealed_parts: u32,
    /// How closely nodes agree.
    pub consistency: Consistency,
    /// What happens when the store does not answer.
    pub on_failure: OnFailure,
}
