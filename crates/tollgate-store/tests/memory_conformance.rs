//! The memory store passes the suite, on a virtual clock.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Nanos, SECOND};
use tollgate_store::MemoryStore;
use tollgate_store::conformance::Harness;

struct Virtual {
    store: MemoryStore,
    now: AtomicU64,
}

impl Harness for Virtual {
    type Store = MemoryStore;

    fn store(&self) -> &MemoryStore {
        &self.store
    }

    async fn now(&self) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }

    async fn advance(&self, by: Nanos) {
        self.now.fetch_add(by, Ordering::Relaxed);
    }
}

async fn make() -> Virtual {
    // Not on the edge of any window.
    let now = AtomicU64::new(1_789_000_000 * SECOND + 123_456_000);
    Virtual { store: MemoryStore::new(100_000), now }
}

tollgate_store::conformance_tests!(make);
