//! Shares of open reservations: nobody takes them all. Counted are those that were opened through this node, by callers
//! of its API and by requests for models through its gateway, by whom they are for and by who calls; the store has the
//! bound of all. Whom they are for is a name in the request, which a caller can invent; who calls is known.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::Nanos;
use tollgate_engine::{Engine, EngineError, REMEMBERED_FOR, Request, Reservation, SlotShares};
use tollgate_gateway::{Party, Places};
use tollgate_policy::Known;
use tollgate_store::Store;
use tollgate_tower::{Held, Identity};

use crate::callers::{CallerId, CallerKey, CallerShares};
use crate::http::wire::AllowBody;

/// The most reservations that are counted: as many as may be open.
const DEFAULT_MAX_RESERVATIONS: usize = 100_000;

/// How many reservations are looked up in the store before one is refused: another node may have ended them.
const MAX_LOOKED_UP: usize = 16;

/// Ended reservations are removed from the order of look-ups, and from that of expiries, when it is longer than twice
/// the open ones and this.
const MIN_ORDER: usize = 64;

/// Open reservations by owner and by caller.
#[derive(Debug)]
pub struct ReservationShares {
    open: Mutex<Open>,
    hasher: RandomState,
}

/// The request that opens a reservation: whom it is for, and its `requestId` with the caller who chose it.
#[derive(Debug)]
pub(crate) struct Opening {
    owner: Party,
    caller: CallerKey,
    /// A hash of the caller and the `requestId`.
    request: Option<u64>,
}

/// A reservation that is counted.
#[derive(Debug)]
struct Counted {
    owner: Party,
    caller: CallerKey,
    expires_at: Nanos,
    request: Option<u64>,
}

#[derive(Debug)]
struct Open {
    by_id: HashMap<u128, Counted>,
    /// Until when the answer to a request is remembered, by request: the same one again opens nothing.
    by_request: HashMap<u64, Nanos>,
    /// In which order reservations are looked up in the store.
    look_ups: VecDeque<u128>,
    by_owner: Places,
    by_caller: CallerShares,
    /// How many requests for models have been given a place: each has a number of its own.
    places: u128,
    /// When each was to expire when it was last looked at; it may have been renewed since.
    expiries: BinaryHeap<Reverse<(Nanos, u128)>>,
}

/// Whom a reservation is for.
pub(crate) fn owner_of(body: &AllowBody<'_>) -> Party {
    Party::new(
        body.get(Known::TenantId),
        body.get(Known::ApiKey),
        body.get(Known::UserId),
        body.get(Known::Ip),
    )
}

impl Default for ReservationShares {
    fn default() -> Self {
        Self::new(DEFAULT_MAX_RESERVATIONS)
    }
}

impl ReservationShares {
    /// Shares of so many reservations.
    pub fn new(max: usize) -> Self {
        let open = Open {
            by_id: HashMap::new(),
            by_request: HashMap::new(),
            look_ups: VecDeque::new(),
            by_owner: Places::new(max),
            by_caller: CallerShares::new(max),
            places: 0,
            expiries: BinaryHeap::new(),
        };
        Self { open: Mutex::new(open), hasher: RandomState::new() }
    }

    /// Asks for room for one more reservation. Where there is none, some of those that are counted are looked up
    /// in the store, because any node may have ended them.
    pub(crate) async fn admit<S: Store>(
        &self,
        engine: &Engine<S>,
        body: &AllowBody<'_>,
        caller: CallerId<'_>,
    ) -> Result<Opening, EngineError> {
        let request = body.request_id.as_deref().map(|id| self.hasher.hash_one((caller.name, id)));
        let opening = Opening { owner: owner_of(body), caller: self.caller(caller), request };
        if self.has_room(&opening, engine.clock().now()) {
            return Ok(opening);
        }
        engine.look_up(self).await;
        let has_room = self.has_room(&opening, engine.clock().now());
        if has_room { Ok(opening) } else { Err(EngineError::ReservationsFull) }
    }

    fn has_room(&self, opening: &Opening, now: Nanos) -> bool {
        let mut open = self.open.lock();
        open.expire(now);
        let until = opening.request.and_then(|request| open.by_request.get(&request));
        until.is_some_and(|until| now < *until) || open.has_room(&opening.owner, opening.caller)
    }

    fn caller(&self, caller: CallerId<'_>) -> CallerKey {
        self.open.lock().by_caller.key(caller)
    }

    /// A place for a request for a model, until it is dropped. The gateway has no record of it in the store, so it
    /// does not expire.
    pub(crate) fn take_place(
        self: &Arc<Self>,
        identity: &Identity,
        now: Nanos,
    ) -> Result<Held, EngineError> {
        let owner = Party::of(identity);
        // The gateway has checked tenant, key and user, or knows the client by no more than its address.
        let ip = identity.ip.as_deref().unwrap_or_default();
        let is_known = identity.tenant_id.is_some()
            || identity.api_key.is_some()
            || identity.user_id.is_some();
        let name = if is_known { ip } else { "" };
        let caller = self.caller(CallerId { name, peer: ip.parse().ok() });
        let mut open = self.open.lock();
        open.expire(now);
        if !open.has_room(&owner, caller) {
            return Err(EngineError::ReservationsFull);
        }
        open.places = open.places.wrapping_add(1);
        // Ids of reservations are random: these are counted from the other end, and meet none of them.
        let id = !open.places;
        open.insert(id, Counted { owner, caller, expires_at: Nanos::MAX, request: None });
        drop(open);
        let shares = Arc::clone(self);
        Ok(Held::new(move || shares.ended(id)))
    }

    pub(crate) fn opened(&self, opening: &Opening, reservation: &Reservation, now: Nanos) {
        let Opening { owner, caller, request } = opening;
        let (id, expires_at) = (reservation.id, reservation.expires_at);
        let mut open = self.open.lock();
        // A repeated call is answered with the same one.
        let (owner, caller, request) = (owner.clone(), *caller, *request);
        if open.insert(id, Counted { owner, caller, expires_at, request }) {
            open.expiries.push(Reverse((expires_at, id)));
            open.look_ups.push_back(id);
            if let Some(request) = request {
                open.by_request.insert(request, now.saturating_add(REMEMBERED_FOR));
            }
            open.remove_ended();
        }
    }

    pub(crate) fn renewed(&self, id: u128, expires_at: Nanos) {
        if let Some(counted) = self.open.lock().by_id.get_mut(&id) {
            counted.expires_at = expires_at;
        }
    }

    pub(crate) fn ended(&self, id: u128) {
        self.open.lock().remove(id);
    }
}

/// Whom a request is for.
fn owner_of_request(request: &Request<'_>) -> Party {
    let of = |known| request.attributes.get(known);
    Party::new(of(Known::TenantId), of(Known::ApiKey), of(Known::UserId), of(Known::Ip))
}

impl SlotShares for ReservationShares {
    fn has_room(&self, request: &Request<'_>, now: Nanos) -> bool {
        let caller = CallerId { name: request.caller, peer: request.caller_address };
        let mut open = self.open.lock();
        open.expire(now);
        let caller = open.by_caller.key(caller);
        open.has_room(&owner_of_request(request), caller)
    }

    fn open(&self, request: &Request<'_>, id: u128, expires_at: Nanos, now: Nanos) -> bool {
        let owner = owner_of_request(request);
        let caller = CallerId { name: request.caller, peer: request.caller_address };
        let mut open = self.open.lock();
        open.expire(now);
        let caller = open.by_caller.key(caller);
        if !open.has_room(&owner, caller) {
            return false;
        }
        open.insert(id, Counted { owner, caller, expires_at, request: None });
        open.expiries.push(Reverse((expires_at, id)));
        open.look_ups.push_back(id);
        open.remove_ended();
        true
    }

    fn close(&self, id: u128) {
        self.ended(id);
    }

    /// The next ones in the order go to its end; those that have ended leave it.
    fn next_look_ups(&self) -> Vec<u128> {
        let mut open = self.open.lock();
        let mut ids = Vec::new();
        for _ in 0..open.look_ups.len() {
            let Some(id) = open.look_ups.pop_front() else { break };
            if open.by_id.contains_key(&id) {
                open.look_ups.push_back(id);
                ids.push(id);
            }
            if ids.len() == MAX_LOOKED_UP {
                break;
            }
        }
        ids
    }
}

impl Open {
    /// Whether it is a new one.
    fn insert(&mut self, id: u128, counted: Counted) -> bool {
        let (owner, caller) = (counted.owner.clone(), counted.caller);
        let is_new = self.by_id.insert(id, counted).is_none();
        if is_new {
            self.by_owner.take(owner);
            self.by_caller.take(caller);
        }
        is_new
    }

    /// Whether there is room in the share of the owner and in that of the caller.
    fn has_room(&self, owner: &Party, caller: CallerKey) -> bool {
        self.by_owner.has_room(owner) && self.by_caller.has_room(caller)
    }

    fn remove(&mut self, id: u128) {
        if let Some(Counted { owner, caller, request, .. }) = self.by_id.remove(&id) {
            self.by_owner.give_back(&owner);
            self.by_caller.give_back(caller);
            if let Some(request) = request {
                self.by_request.remove(&request);
            }
        }
    }

    /// Removes ended reservations from the orders, where they are most of them.
    fn remove_ended(&mut self) {
        let max = 2 * self.by_id.len() + MIN_ORDER;
        if self.look_ups.len() > max {
            self.look_ups.retain(|id| self.by_id.contains_key(id));
        }
        if self.expiries.len() > max {
            let open = self.by_id.iter().filter(|(_, counted)| counted.expires_at < Nanos::MAX);
            self.expiries = open.map(|(id, counted)| Reverse((counted.expires_at, *id))).collect();
        }
    }

    fn expire(&mut self, now: Nanos) {
        while let Some(Reverse((at, id))) = self.expiries.peek().copied() {
            let current = self.by_id.get(&id).map(|counted| counted.expires_at);
            match current {
                // It ended.
                None => drop(self.expiries.pop()),
                Some(expires) if expires > at => {
                    self.expiries.pop();
                    self.expiries.push(Reverse((expires, id)));
                }
                Some(_) if at <= now => {
                    self.expiries.pop();
                    self.remove(id);
                }
                Some(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Party {
        Party::new(Some(name), None, None, None)
    }

    fn user(name: &str) -> Party {
        Party::new(None, None, Some(name), None)
    }

    /// Opens as many as there is room for.
    fn fill(shares: &ReservationShares, owner: &Party, from: u128) -> usize {
        let mut count = 0;
        while has_room(shares, owner, 0) {
            open(shares, owner, from + count as u128);
            count += 1;
        }
        count
    }

    fn opening(shares: &ReservationShares, owner: &Party) -> Opening {
        Opening { owner: owner.clone(), caller: shares.caller("token".into()), request: None }
    }

    fn opening_by(shares: &ReservationShares, name: &str, tenant: usize) -> Opening {
        let caller = shares.caller(CallerId::from_label(name));
        Opening { owner: self::tenant(&tenant.to_string()), caller, request: None }
    }

    /// Opens as many as there is room for, each for a tenant of another name.
    fn fill_by(shares: &ReservationShares, caller: &str, from: u128) -> usize {
        (0..2_000)
            .take_while(|number| {
                let opening = opening_by(shares, caller, *number);
                let has_room = shares.has_room(&opening, 0);
                if has_room {
                    let id = from + *number as u128;
                    shares.opened(&opening, &Reservation { id, expires_at: 100 }, 0);
                }
                has_room
            })
            .count()
    }

    #[test]
    fn a_caller_with_invented_tenants_leaves_room_for_other_callers() {
        let shares = ReservationShares::new(800);
        assert_eq!(fill_by(&shares, "loud", 0), 750);
        assert_eq!(fill_by(&shares, "quiet", 10_000), 47);
        assert!(shares.has_room(&opening_by(&shares, "third", 5_000), 0));
        assert!(!shares.has_room(&opening_by(&shares, "loud", 9_999), 0));
        assert!(shares.has_room(&opening_by(&shares, "loud", 9_999), 100), "they expire");
        assert_eq!(shares.open.lock().by_caller.callers(), 0);
    }

    #[test]
    fn callers_without_a_token_leave_room_for_those_with_one() {
        let shares = ReservationShares::new(800);
        let addresses = (0_u16..100).map(|number| {
            let address = format!("192.0.2.{number}");
            fill_by(&shares, &address, 10_000 * u128::from(number))
        });
        assert_eq!(addresses.sum::<usize>(), 600);
        assert!(fill_by(&shares, "token", 10_000_000) > 150);
        let of = |tenant: &str| Identity { tenant_id: Some(tenant.into()), ..Identity::default() };
        let shares = Arc::new(shares);
        assert!(shares.take_place(&of("of a registered key"), 0).is_ok());
    }

    fn has_room(shares: &ReservationShares, owner: &Party, now: Nanos) -> bool {
        shares.has_room(&opening(shares, owner), now)
    }

    fn open(shares: &ReservationShares, owner: &Party, id: u128) {
        shares.opened(&opening(shares, owner), &Reservation { id, expires_at: 100 }, 0);
    }

    #[test]
    fn nobody_takes_all_reservations() {
        let shares = ReservationShares::new(2_000);
        let users: usize = (0..100).map(|n| fill(&shares, &user(&n.to_string()), n * 2_000)).sum();
        assert_eq!(users, 1_500, "made-up users leave room for tenants");
        assert_eq!(fill(&shares, &tenant("loud"), 1_000_000), 167);
        for (number, name) in (2..).zip(["a", "b", "c"]) {
            assert!(fill(&shares, &tenant(name), number * 1_000_000) > 0, "{name}");
        }
        let shares = ReservationShares::new(2);
        assert_eq!(fill(&shares, &tenant("only"), 0), 2, "few are not divided");
        shares.ended(1);
        shares.ended(1);
        assert_eq!(fill(&shares, &tenant("late"), 400), 1);
    }

    #[test]
    fn what_expires_is_not_counted_and_what_is_renewed_is() {
        let shares = ReservationShares::new(64);
        assert_eq!(fill(&shares, &tenant("a"), 0), 22);
        shares.renewed(0, 200);
        assert!(!has_room(&shares, &tenant("a"), 99));
        assert!(has_room(&shares, &tenant("a"), 100), "all but one have expired");
        assert_eq!(shares.open.lock().by_id.len(), 1);
        assert!(has_room(&shares, &tenant("a"), 200));
        let open = shares.open.lock();
        assert!(open.by_id.is_empty() && open.by_owner.parties() == 0 && open.expiries.is_empty());
    }

    #[test]
    fn requests_for_models_have_their_tenants_share() {
        let shares = Arc::new(ReservationShares::new(64));
        let of = |tenant: &str| Identity { tenant_id: Some(tenant.into()), ..Identity::default() };
        assert!(has_room(&shares, &tenant("a"), 0));
        open(&shares, &tenant("a"), 1);
        let places: Vec<_> = (0..30).map_while(|_| shares.take_place(&of("a"), 0).ok()).collect();
        assert_eq!(places.len(), 21, "with the one of the API");
        assert!(!has_room(&shares, &tenant("a"), 0));
        assert!(shares.take_place(&of("b"), 0).is_ok());
        drop(places);
        assert!(shares.take_place(&of("a"), 0).is_ok());
        shares.ended(1);
        let open = shares.open.lock();
        assert!(open.by_id.is_empty() && open.by_owner.parties() == 0 && open.expiries.len() == 1);
    }

    #[test]
    fn the_same_answer_twice_is_one_reservation() {
        let shares = ReservationShares::new(64);
        for _ in 0..100 {
            open(&shares, &tenant("a"), 1);
        }
        assert!(has_room(&shares, &tenant("a"), 0));
    }

    #[test]
    fn a_repeated_request_needs_no_room() {
        let shares = ReservationShares::new(64);
        let first =
            Opening { owner: tenant("a"), caller: shares.caller("token".into()), request: Some(7) };
        shares.opened(&first, &Reservation { id: 1, expires_at: Nanos::MAX }, 0);
        fill(&shares, &tenant("a"), 100);
        assert!(shares.has_room(&first, 99));
        let other =
            Opening { owner: tenant("a"), caller: shares.caller("token".into()), request: Some(8) };
        assert!(!shares.has_room(&other, 99));
        fill(&shares, &tenant("b"), 1_000);
        shares.ended(1);
        assert!(shares.open.lock().by_request.is_empty());
    }

    #[test]
    fn the_orders_of_look_ups_and_expiries_are_bounded() {
        let shares = ReservationShares::new(64);
        // Stays open, and expires before the others: they never are the next to expire.
        shares.opened(
            &opening(&shares, &tenant("b")),
            &Reservation { id: 30_000, expires_at: 50 },
            0,
        );
        for id in 0..10_000 {
            open(&shares, &tenant("a"), id);
            shares.ended(id);
            assert!(has_room(&shares, &tenant("a"), 0));
        }
        assert!(shares.open.lock().look_ups.len() <= MIN_ORDER + 4);
        assert!(shares.open.lock().expiries.len() <= MIN_ORDER + 4);
        assert!(has_room(&shares, &tenant("a"), 50));
        assert!(shares.open.lock().by_id.is_empty(), "it has expired");
        open(&shares, &tenant("a"), 20_000);
        assert_eq!(shares.next_look_ups(), [20_000]);
        assert_eq!(shares.next_look_ups(), [20_000], "it is still open");
        shares.ended(20_000);
        assert!(shares.next_look_ups().is_empty());
    }
}
