//! Who is next: start-time fair queueing over tenants, for a bounded number of places.
//!
//! Every tenant has a tag, which grows by what it is served divided by its weight; the smallest tag is served
//! first. A tenant that was idle begins at the tag of now: it has saved nothing up, and owes nothing for having
//! had more while others wanted less. Nothing here waits or reads a clock.

use std::collections::{BTreeSet, HashMap, VecDeque};

/// The difference between two tags for a cost of 1 at a weight of 1.
const GRAIN: u128 = 1 << 20;

/// Tenants that are remembered although none of their requests waits.
const MAX_REMEMBERED: usize = 4_096;

/// A kind of clients with places of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its part of all places, in percent.
    pub percent: u32,
    /// Whether it may take more while there are places enough.
    pub may_borrow: bool,
}

/// How many places there are, and how many may wait for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineOptions {
    /// Served at the same time.
    pub capacity: usize,
    /// Waiting at the same time.
    pub max_waiting: usize,
    /// The kinds of clients. Without any, all are of one kind that has all places.
    pub shares: Vec<Share>,
    /// From this part of all places on, in percent, nobody has more than its share.
    pub strict_from_percent: u32,
}

/// Who wants a place.
#[derive(Debug, Clone, Copy)]
pub struct Wants<'a> {
    /// Which kind of clients; beyond the last one, the last.
    pub share: usize,
    /// Whose turn it is to be weighed.
    pub tenant: &'a str,
    /// How much this tenant gets beside others; 0 counts as 1.
    pub weight: u32,
    /// How much this request is of what is shared; 0 counts as 1.
    pub cost: u64,
}

/// The place of a request in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    flow: u64,
    number: u64,
}

/// What becomes of a request that wants a place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered<T> {
    /// It has a place, of this share.
    Served(usize),
    /// It waits.
    Waits(Ticket),
    /// It waits, where the last one of a tenant with far more in the line waited.
    WaitsInsteadOf(Ticket, T),
    /// There is no room to wait.
    Full,
}

#[derive(Debug)]
struct Flow<T> {
    name: (usize, Box<str>),
    /// The tag of its next request.
    tag: u128,
    weight: u32,
    waiting: VecDeque<(u64, u64, T)>,
}

impl<T> Flow<T> {
    /// How many wait, for its weight.
    fn length(&self) -> u128 {
        self.waiting.len() as u128 * GRAIN / u128::from(self.weight)
    }

    fn advance(&mut self, cost: u64) {
        self.tag =
            self.tag.saturating_add(u128::from(cost.max(1)) * GRAIN / u128::from(self.weight));
    }
}

/// The places of one model, and who waits for them.
#[derive(Debug)]
pub(crate) struct Line<T> {
    options: LineOptions,
    /// Places taken, by share.
    held: Vec<usize>,
    /// The tag that was served last.
    now: u128,
    names: HashMap<(usize, Box<str>), u64>,
    flows: HashMap<u64, Flow<T>>,
    /// Those that have something waiting, by tag; one set for each share.
    backlog: Vec<BTreeSet<(u128, u64)>>,
    waiting: usize,
    next_number: u64,
}

impl<T> Line<T> {
    pub(crate) fn new(mut options: LineOptions) -> Self {
        if options.shares.is_empty() {
            options.shares.push(Share { percent: 100, may_borrow: true });
        }
        let shares = options.shares.len();
        Self {
            options,
            held: vec![0; shares],
            now: 0,
            names: HashMap::new(),
            flows: HashMap::new(),
            backlog: vec![BTreeSet::new(); shares],
            waiting: 0,
            next_number: 0,
        }
    }

    /// Places taken.
    pub(crate) fn held(&self) -> usize {
        self.held.iter().sum()
    }

    /// Requests that wait.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Gives a place of a share, if there is one now.
    pub(crate) fn serve(&mut self, wants: &Wants<'_>) -> Option<usize> {
        let share = self.share_of(wants);
        // Nobody overtakes those of its own share who wait.
        if !self.backlog.get(share)?.is_empty() || !self.has_place(share) {
            return None;
        }
        let id = self.flow(share, wants);
        let flow = self.flows.get_mut(&id)?;
        let tag = flow.tag.max(self.now);
        flow.tag = tag;
        flow.advance(wants.cost);
        self.take(share, tag);
        Some(share)
    }

    /// Gives a place, or lets wait for one.
    pub(crate) fn enter(&mut self, wants: &Wants<'_>, item: T) -> Entered<T> {
        if let Some(share) = self.serve(wants) {
            return Entered::Served(share);
        }
        let share = self.share_of(wants);
        let pushed_out = if self.waiting < self.options.max_waiting {
            None
        } else {
            match self.push_out(share, wants) {
                Some(last) => Some(last),
                None => return Entered::Full,
            }
        };
        let ticket = self.wait(share, wants, item);
        match pushed_out {
            Some(last) => Entered::WaitsInsteadOf(ticket, last),
            None => Entered::Waits(ticket),
        }
    }

    /// Takes a request out of the line. `None` if it no longer waits.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<T> {
        let flow = self.flows.get_mut(&ticket.flow)?;
        let place = flow.waiting.iter().position(|(number, ..)| *number == ticket.number)?;
        let (_, _, item) = flow.waiting.remove(place)?;
        self.waiting -= 1;
        if flow.waiting.is_empty() {
            let (share, entry) = (flow.name.0, (flow.tag, ticket.flow));
            if let Some(backlog) = self.backlog.get_mut(share) {
                backlog.remove(&entry);
            }
        }
        Some(item)
    }

    /// A place is free again.
    pub(crate) fn release(&mut self, share: usize) {
        if let Some(held) = self.held.get_mut(share) {
            *held = held.saturating_sub(1);
        }
    }

    /// Gives a free place to the next request in line, and returns the share that it belongs to.
    pub(crate) fn next(&mut self) -> Option<(usize, T)> {
        let shares = 0..self.options.shares.len();
        let first = |share: usize| Some((*self.backlog.get(share)?.first()?, share));
        let heads = shares.filter(|share| self.has_place(*share)).filter_map(first);
        let ((tag, id), share) = heads.min()?;
        let flow = self.flows.get_mut(&id)?;
        let (_, cost, item) = flow.waiting.pop_front()?;
        flow.advance(cost);
        let entry = (flow.tag, id);
        let is_empty = flow.waiting.is_empty();
        if let Some(backlog) = self.backlog.get_mut(share) {
            backlog.remove(&(tag, id));
            if !is_empty {
                backlog.insert(entry);
            }
        }
        self.waiting -= 1;
        self.take(share, tag);
        Some((share, item))
    }

    /// Whether another one of this share may have a place now.
    fn has_place(&self, share: usize) -> bool {
        let (all, capacity) = (self.held(), self.options.capacity);
        let (Some(own), Some(options)) = (self.held.get(share), self.options.shares.get(share))
        else {
            return false;
        };
        if all >= capacity {
            return false;
        }
        let is_strict = all * 100 >= capacity * self.options.strict_from_percent as usize;
        let is_within = own * 100 < capacity * options.percent as usize;
        is_within || (options.may_borrow && !is_strict) || self.options.shares.len() == 1
    }

    fn share_of(&self, wants: &Wants<'_>) -> usize {
        wants.share.min(self.options.shares.len().saturating_sub(1))
    }

    fn take(&mut self, share: usize, tag: u128) {
        self.now = self.now.max(tag);
        if let Some(held) = self.held.get_mut(share) {
            *held += 1;
        }
    }

    fn wait(&mut self, share: usize, wants: &Wants<'_>, item: T) -> Ticket {
        let id = self.flow(share, wants);
        let number = self.next_number;
        self.next_number += 1;
        if let Some(flow) = self.flows.get_mut(&id) {
            if flow.waiting.is_empty() {
                flow.tag = flow.tag.max(self.now);
                if let Some(backlog) = self.backlog.get_mut(share) {
                    backlog.insert((flow.tag, id));
                }
            }
            flow.waiting.push_back((number, wants.cost, item));
            self.waiting += 1;
        }
        Ticket { flow: id, number }
    }

    /// The last one of the tenant that has the most waiting for its weight, if that is more than the
    /// newcomer's would be: a flood fills its own part of the line, and nobody else's.
    fn push_out(&mut self, share: usize, wants: &Wants<'_>) -> Option<T> {
        let weight = wants.weight.max(1);
        let own = self
            .names
            .get(&(share, wants.tenant.into()))
            .and_then(|id| self.flows.get(id))
            .map_or(0, |flow| flow.waiting.len());
        let own = (own as u128 + 1) * GRAIN / u128::from(weight);
        let backlog = self.backlog.iter().flatten();
        let lengths = backlog.filter_map(|(_, id)| Some((self.flows.get(id)?.length(), *id)));
        let (longest, id) = lengths.max()?;
        if longest <= own {
            return None;
        }
        let number = self.flows.get(&id)?.waiting.back()?.0;
        self.leave(Ticket { flow: id, number })
    }

    fn flow(&mut self, share: usize, wants: &Wants<'_>) -> u64 {
        let name = (share, Box::from(wants.tenant));
        let weight = wants.weight.max(1);
        if let Some(id) = self.names.get(&name) {
            if let Some(flow) = self.flows.get_mut(id) {
                flow.weight = weight;
            }
            return *id;
        }
        self.forget();
        let id = self.next_number;
        self.next_number += 1;
        self.names.insert(name.clone(), id);
        self.flows.insert(id, Flow { name, tag: self.now, weight, waiting: VecDeque::new() });
        id
    }

    /// Forgets tenants that would begin anew where they stand; if there are very many, all that do not wait.
    fn forget(&mut self) {
        if self.flows.len() < MAX_REMEMBERED {
            return;
        }
        let now = self.now;
        self.flows.retain(|_, flow| !flow.waiting.is_empty() || flow.tag > now);
        if self.flows.len() >= MAX_REMEMBERED {
            self.flows.retain(|_, flow| !flow.waiting.is_empty());
        }
        let flows = &self.flows;
        self.names.retain(|_, id| flows.contains_key(id));
    }
}
