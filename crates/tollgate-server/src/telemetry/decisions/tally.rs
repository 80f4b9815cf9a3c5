//! How many decisions there were, by result, scope, model and tenant.
//!
//! Each thread counts in cells of its own, without a lock; a scrape adds them up.

use std::array;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_engine::{Decision, Request, Verdict};
use tollgate_policy::Known;

use super::labels::{Book, Found, Ids, Label, LabelBounds, NONE, Said};
use crate::shards::{self, SHARDS};

/// What became of requests.
pub(crate) const RESULTS: [&str; 4] = ["allowed", "denied", "throttled", "queued"];

/// The counts of a cell in their order: results, and would-deny outcomes, which are part of no result.
pub(crate) const COUNTS: [&str; 5] = ["allowed", "denied", "throttled", "queued", "would_deny"];

/// The place of would-deny outcomes among [`COUNTS`].
pub(crate) const WOULD_DENY: usize = RESULTS.len();

/// Numbers the editions of all books there are.
static EDITIONS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The book that this thread has last used, and its edition.
    static AT_HAND: RefCell<Option<(u64, Arc<Book>)>> = const { RefCell::new(None) };
}

/// What is counted of one combination of labels by one thread.
#[derive(Debug, Default)]
struct Cell {
    counts: [AtomicU64; COUNTS.len()],
    /// The highest share used, as the bits of a float: those of positive floats order like numbers.
    highest: AtomicU32,
    /// The same in the period before.
    before: AtomicU32,
}

/// One combination of labels, and what is counted of it by all threads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) scope: Arc<str>,
    pub(crate) model: Arc<str>,
    pub(crate) tenant: Arc<str>,
    /// In the order of [`COUNTS`].
    pub(crate) counts: [u64; COUNTS.len()],
    /// The highest share of a limit that was used lately.
    pub(crate) highest: f32,
}

/// Counts decisions.
pub(crate) struct Tally {
    book: ArcSwap<Book>,
    /// The number of the book's edition.
    edition: AtomicU64,
    /// Held while the next book is made.
    changing: Mutex<()>,
    shards: [OnceLock<Box<[Cell]>>; SHARDS],
    /// How often a value or a combination found no place of its own.
    refused: AtomicU64,
    /// What was counted in places whose combination is gone.
    gone: [AtomicU64; COUNTS.len()],
}

impl Tally {
    pub(crate) fn new(bounds: LabelBounds, seed: u64) -> Self {
        Self {
            book: ArcSwap::from_pointee(Book::new(bounds, seed)),
            edition: AtomicU64::new(EDITIONS.fetch_add(1, Ordering::Relaxed)),
            changing: Mutex::new(()),
            shards: array::from_fn(|_| OnceLock::new()),
            refused: AtomicU64::new(0),
            gone: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Counts a decision, under the scope that decided.
    #[inline]
    pub(crate) fn count(&self, request: &Request<'_>, decision: &Decision<'_>) {
        let deciding = decision.deciding();
        let scope = deciding.map(|scope| scope.rule.scope.as_str());
        let (cell, is_rest) = self.cell(scope, request);
        if is_rest {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let Some(cell) = cell else { return };
        let result = match decision.verdict {
            Verdict::Allowed => 0,
            Verdict::Denied => 1,
            Verdict::Throttled => 2,
            Verdict::Queued => 3,
        };
        if let Some(count) = cell.counts.get(result) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(scope) = deciding {
            cell.note_usage(scope.outcome.status.used, scope.capacity);
        }
        if decision.has_would_deny() {
            self.count_would_deny(request, decision);
        }
    }

    /// Counts a would-deny outcome once for each scope, and where no limit was asked under none.
    #[cold]
    fn count_would_deny(&self, request: &Request<'_>, decision: &Decision<'_>) {
        let mut scopes: SmallVec<[Option<&str>; 8]> =
            decision.would_deny().map(|scope| Some(scope.rule.scope.as_str())).collect();
        scopes.sort_unstable();
        scopes.dedup();
        if scopes.is_empty() {
            scopes.push(None);
        }
        for scope in scopes {
            let cell = self.cell(scope, request).0;
            if let Some(count) = cell.and_then(|cell| cell.counts.get(WOULD_DENY)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes how full every limit of a decision is.
    pub(crate) fn note_usage(&self, request: &Request<'_>, decision: &Decision<'_>) {
        for scope in decision.scopes() {
            if let (Some(cell), _) = self.cell(Some(scope.rule.scope.as_str()), request) {
                cell.note_usage(scope.outcome.status.used, scope.capacity);
            }
        }
    }

    /// Where a decision is counted, and whether that is together with others.
    #[inline]
    fn cell(&self, scope: Option<&str>, request: &Request<'_>) -> (Option<&Cell>, bool) {
        let model = request.attributes.get(Known::ModelId);
        let tenant = request.attributes.get(Known::TenantId);
        let said = [scope, model, tenant];
        let direct = self.with_book(|book| book.direct(said));
        let (place, is_rest) = match direct {
            Some(place) => (Some(place), false),
            None => self.place(said),
        };
        (place.and_then(|place| self.cells().get(place as usize)), is_rest)
    }

    /// Looks into the book of now. A thread keeps it at hand, which costs less than to ask for it.
    #[inline]
    fn with_book<T>(&self, look: impl FnOnce(&Book) -> T) -> T {
        AT_HAND.with_borrow_mut(|at_hand| {
            let edition = self.edition.load(Ordering::Acquire);
            match at_hand {
                Some((known, book)) if *known == edition => look(book),
                _ => {
                    // Read after the number of its edition: it is that one, or a later one.
                    let book = self.book.load_full();
                    look(&at_hand.insert((edition, book)).1)
                }
            }
        })
    }

    /// [`Tally::cell`] for a combination that is not known by what it says.
    #[cold]
    fn place(&self, said: Said<'_>) -> (Option<u32>, bool) {
        let [scope, model, tenant] = said;
        let mut is_rest = false;
        let book = self.book.load();
        let mut id = |label, name| match book.id(label, name) {
            Found::Known(id) => Some(id),
            Found::Rest(id) => {
                is_rest = true;
                Some(id)
            }
            Found::New => None,
        };
        let ids = (id(Label::Scope, scope), id(Label::Model, model), id(Label::Tenant, tenant));
        let place = match ids {
            (Some(scope), Some(model), Some(tenant)) => {
                let ids = [scope, model, tenant];
                match book.place(ids) {
                    Found::Known(_) if Book::is_direct(said, ids) => Found::New,
                    found => found,
                }
            }
            _ => Found::New,
        };
        match place {
            Found::Known(place) => (Some(place), is_rest),
            Found::Rest(place) => (Some(place), true),
            Found::New => (self.learn(said), is_rest),
        }
    }

    /// Where a combination is counted that the book does not have yet.
    fn learn(&self, said: Said<'_>) -> Option<u32> {
        let [scope, model, tenant] = said;
        let _changing = self.changing.lock();
        let mut book = Book::clone(&self.book.load());
        let mut id = |label, name: Option<&str>| match name {
            None => NONE,
            Some(name) => book.learn_name(label, name),
        };
        let ids: Ids =
            [id(Label::Scope, scope), id(Label::Model, model), id(Label::Tenant, tenant)];
        let place = book.learn_set(ids);
        if let Some(place) = place {
            book.learn_direct(said, ids, place);
        }
        self.publish(book);
        place
    }

    /// Publishes the next edition of the book. Callers change it one at a time.
    fn publish(&self, book: Book) {
        self.book.store(Arc::new(book));
        self.edition.store(EDITIONS.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    }

    #[inline]
    fn cells(&self) -> &[Cell] {
        let Some(shard) = self.shards.get(shards::of_this_thread()) else { return &[] };
        shard.get_or_init(|| {
            let capacity = self.book.load().capacity();
            (0..capacity).map(|_| Cell::default()).collect()
        })
    }

    /// All that is counted under labels there are.
    pub(crate) fn read(&self) -> Vec<Series> {
        let book = self.book.load_full();
        let shards: Vec<&[Cell]> =
            self.shards.iter().filter_map(OnceLock::get).map(|cells| &**cells).collect();
        let mut all = Vec::with_capacity(book.sets());
        for place in 0..book.capacity() {
            let Some([scope, model, tenant]) = book.values_at(place) else { continue };
            let mut series = Series {
                scope: Arc::clone(scope),
                model: Arc::clone(model),
                tenant: Arc::clone(tenant),
                counts: [0; COUNTS.len()],
                highest: 0.0,
            };
            for cell in shards.iter().filter_map(|cells| cells.get(place)) {
                for (sum, count) in series.counts.iter_mut().zip(&cell.counts) {
                    *sum += count.load(Ordering::Relaxed);
                }
                for bits in [&cell.highest, &cell.before] {
                    series.highest =
                        series.highest.max(f32::from_bits(bits.load(Ordering::Relaxed)));
                }
            }
            all.push(series);
        }
        all
    }

    /// How many combinations are counted apart, and how many decisions found no place of their own.
    pub(crate) fn sets(&self) -> (usize, u64) {
        (self.book.load().sets(), self.refused.load(Ordering::Relaxed))
    }

    /// Begins another period of the highest shares: reads cover this period and the one before.
    pub(crate) fn turn(&self) {
        for cells in self.shards.iter().filter_map(OnceLock::get) {
            for cell in cells {
                let highest = cell.highest.swap(0, Ordering::Relaxed);
                cell.before.store(highest, Ordering::Relaxed);
            }
        }
    }

    /// All decisions there ever were, also those under labels that are gone.
    pub(crate) fn totals(&self) -> [u64; COUNTS.len()] {
        let mut totals = array::from_fn(|result| {
            self.gone.get(result).map_or(0, |count| count.load(Ordering::Relaxed))
        });
        for cell in self.shards.iter().filter_map(OnceLock::get).flat_map(|cells| cells.iter()) {
            for (sum, count) in totals.iter_mut().zip(&cell.counts) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        totals
    }

    /// Empties the places that were given up when this was called before, so that they can be used again: by
    /// now no thread counts there by an older book.
    pub(crate) fn reclaim(&self) {
        let _changing = self.changing.lock();
        let mut book = Book::clone(&self.book.load());
        let rested = book.rested();
        if rested.is_empty() {
            return;
        }
        for place in &rested {
            for cells in self.shards.iter().filter_map(OnceLock::get) {
                let Some(cell) = cells.get(*place as usize) else { continue };
                for (gone, count) in self.gone.iter().zip(&cell.counts) {
                    gone.fetch_add(count.swap(0, Ordering::Relaxed), Ordering::Relaxed);
                }
                cell.highest.store(0, Ordering::Relaxed);
                cell.before.store(0, Ordering::Relaxed);
            }
        }
        self.publish(book);
    }

    /// Gives labels of their own to values that are seen far more often than others that have one. `seen` says
    /// how often lately, and `floor` how often at most all others.
    pub(crate) fn prefer(&self, label: Label, seen: &[(&str, u64)], floor: u64) {
        let _changing = self.changing.lock();
        let mut book = Book::clone(&self.book.load());
        if book.replace(label, seen, floor) {
            self.publish(book);
        }
    }
}

impl Cell {
    #[inline]
    fn note_usage(&self, used: u64, capacity: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a metric")]
        let share = used as f32 / capacity.max(1) as f32;
        let bits = share.to_bits();
        if bits > self.highest.load(Ordering::Relaxed) {
            self.highest.fetch_max(bits, Ordering::Relaxed);
        }
    }
}
