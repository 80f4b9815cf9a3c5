//! Receipts as bytes, so that any node can settle what another one charged.
//!
//! Numbers are little-endian; texts come after their length. What cannot be read, or was written by a
//! version that writes otherwise, is refused as a whole.

use tollgate_core::{Algorithm, Calendar, CalendarUnit, Limit, LimitSpec, Receipt, SlotId, Window};
use tollgate_policy::Unit;
use tollgate_policy::prices::{Currency, Price};
use tollgate_store::{Consistency, Home, OnFailure, Store};

use crate::ledger::Spend;
use crate::receipts::{Part, Receipts};

/// Changes when the bytes do.
const FORMAT: u8 = 1;

/// The same bytes, for charges that a fallback of this process made. Such a record never leaves the process.
const FORMAT_HERE: u8 = 2;

/// The formats of charges of which some are money: the currency and the price at admission come last.
const FORMAT_MONEY: u8 = 3;
const FORMAT_MONEY_HERE: u8 = 4;

/// What a ledger is to know comes first, then the charges in one of the other formats.
const FORMAT_SPEND: u8 = 6;

/// The most charges that are read.
const MAX_PARTS: u16 = 1024;

/// The most values of one key.
const MAX_KEY_PARTS: u8 = 64;

/// In the order of their bytes: older nodes do not know the last ones, and refuse a record with them.
const UNITS: [Unit; 8] = [
    Unit::Requests,
    Unit::Tokens,
    Unit::Cost,
    Unit::Concurrency,
    Unit::InputTokens,
    Unit::OutputTokens,
    Unit::CachedTokens,
    Unit::Money,
];

/// Encodes receipts. `instance` names this process. Secrets are written as the store conceals them;
/// a charge that only this process could find again, by the secret itself, is left out and not
/// refunded.
pub(crate) fn encode<S: Store>(receipts: &Receipts, instance: u64, store: &S) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(spend) = &receipts.spend {
        bytes.push(FORMAT_SPEND);
        spend.write(&mut bytes);
    }
    bytes.push(match (receipts.is_here, receipts.currency.is_some()) {
        (false, false) => FORMAT,
        (true, false) => FORMAT_HERE,
        (false, true) => FORMAT_MONEY,
        (true, true) => FORMAT_MONEY_HERE,
    });
    bytes.extend_from_slice(&instance.to_le_bytes());
    let count = bytes.len();
    bytes.extend_from_slice(&[0; 2]);
    let mut parts = 0_u16;
    for part in &receipts.parts {
        let concealed = if receipts.is_here { None } else { conceal(part, store) };
        let written = concealed.as_ref().unwrap_or(part);
        // A secret is written as it is only where it stays in this process.
        let leaks = !receipts.is_here && !store.is_in_process() && written.has_open_secret();
        if (concealed.is_none() || !part.is_local()) && !leaks && parts < MAX_PARTS {
            push_part(&mut bytes, written);
            parts += 1;
        }
    }
    if let Some(place) = bytes.get_mut(count..count + 2) {
        place.copy_from_slice(&parts.to_le_bytes());
    }
    if let Some(currency) = receipts.currency {
        currency.write(&mut bytes);
        bytes.push(u8::from(receipts.price.is_some()));
        if let Some(price) = &receipts.price {
            price.write(&mut bytes);
        }
    }
    bytes
}

/// The same charge with its secrets as the store conceals them, if it has any.
fn conceal<S: Store>(part: &Part, store: &S) -> Option<Part> {
    let mut copy = None;
    for (place, value) in part.key.iter().enumerate().take(u32::BITS as usize) {
        if part.home.secret_parts >> place & 1 == 0 {
            continue;
        }
        let Some(concealed) = store.conceal(&part.home, value) else { continue };
        let copy = copy.get_or_insert_with(|| part.clone());
        if let Some(value) = copy.key.get_mut(place) {
            *value = concealed;
            copy.home.concealed_parts |= 1 << place;
        }
    }
    copy
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    // Rules and requests are bounded far below this.
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes().get(..usize::from(length)).unwrap_or_default());
}

fn push_part(bytes: &mut Vec<u8>, part: &Part) {
    let unit = UNITS.iter().position(|unit| *unit == part.unit).unwrap_or(0);
    bytes.push(unit as u8);
    push_text(bytes, &part.rule_id);
    push_text(bytes, &part.tag);
    bytes.extend_from_slice(&part.salt.to_le_bytes());
    bytes.push(u8::try_from(part.key.len()).unwrap_or(u8::MAX));
    for value in &part.key {
        push_text(bytes, value);
    }
    push_home(bytes, &part.home);
    push_limit(bytes, &part.limit);
    push_receipt(bytes, &part.receipt);
}

fn push_home(bytes: &mut Vec<u8>, home: &Home) {
    bytes.push(home.store);
    bytes.push(u8::from(home.partition.is_some()));
    bytes.push(home.partition.unwrap_or(0));
    bytes.extend_from_slice(&home.secret_parts.to_le_bytes());
    bytes.extend_from_slice(&home.concealed_parts.to_le_bytes());
    let (kind, ppm) = match home.consistency {
        Consistency::Strict => (0, 0),
        Consistency::Leased { max_overshoot_ppm } => (1, max_overshoot_ppm),
        Consistency::Local => (2, 0),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&ppm.to_le_bytes());
    bytes.push(match home.on_failure {
        OnFailure::Local => 0,
        OnFailure::Open => 1,
        OnFailure::Closed => 2,
    });
}

fn push_limit(bytes: &mut Vec<u8>, limit: &Limit) {
    let algorithm = Algorithm::ALL.iter().position(|one| *one == limit.algorithm()).unwrap_or(0);
    bytes.push(algorithm as u8);
    for figure in [limit.quota(), limit.capacity(), limit.slot_ttl()] {
        bytes.extend_from_slice(&figure.to_le_bytes());
    }
    match limit.window() {
        Window::Every(nanos) => {
            bytes.push(0);
            bytes.extend_from_slice(&nanos.to_le_bytes());
        }
        Window::Calendar(calendar) => {
            let unit = CalendarUnit::ALL.iter().position(|unit| *unit == calendar.unit());
            bytes.extend_from_slice(&[1, unit.unwrap_or(0) as u8, calendar.anchor_day()]);
            push_text(bytes, calendar.zone_name());
        }
    }
}

fn push_receipt(bytes: &mut Vec<u8>, receipt: &Receipt) {
    let (kind, first, second, cost) = match *receipt {
        Receipt::Nothing => (0, 0, 0, 0),
        Receipt::Window { end, at, cost } => (1, end, at, cost),
        Receipt::Log { at, cost } => (2, at, 0, cost),
        Receipt::Bucket { at, cost } => (3, at, 0, cost),
        Receipt::LatestOfBucket { cost } => (6, 0, 0, cost),
        Receipt::Open { at, cost } => (5, at, 0, cost),
        Receipt::Slot(SlotId(id)) => {
            bytes.push(4);
            bytes.extend_from_slice(&id.to_le_bytes());
            return;
        }
    };
    bytes.push(kind);
    for figure in [first, second, cost] {
        bytes.extend_from_slice(&figure.to_le_bytes());
    }
}

/// Reads receipts. What a process that is not `instance` counted alone stays as it is.
pub(crate) fn decode(bytes: &[u8], instance: u64) -> Option<Receipts> {
    let (spend, bytes) = match bytes.split_first()? {
        (&FORMAT_SPEND, rest) => {
            let (spend, rest) = Spend::read(rest)?;
            (Some(Box::new(spend)), rest)
        }
        _ => (None, bytes),
    };
    let mut reader = Reader(bytes);
    let (is_here, has_money) = match reader.byte()? {
        FORMAT => (false, false),
        FORMAT_HERE => (true, false),
        FORMAT_MONEY => (false, true),
        FORMAT_MONEY_HERE => (true, true),
        _ => return None,
    };
    let is_own = reader.u64()? == instance;
    let count = reader.u16()?;
    if count > MAX_PARTS {
        return None;
    }
    let mut receipts = Receipts { is_here, spend, ..Receipts::default() };
    for _ in 0..count {
        let mut part = reader.part()?;
        part.is_remote = part.is_local() && !is_own;
        receipts.parts.push(part);
    }
    if has_money {
        (receipts.currency, receipts.price) = reader.money()?;
    }
    reader.0.is_empty().then_some(receipts)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn byte(&mut self) -> Option<u8> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_le_bytes)
    }

    /// The currency of the money, and its price if it was priced.
    fn money(&mut self) -> Option<(Option<Currency>, Option<Box<Price>>)> {
        let (currency, rest) = Currency::read(self.0)?;
        self.0 = rest;
        let price = match self.byte()? {
            0 => None,
            1 => {
                let (price, rest) = Price::read(self.0)?;
                self.0 = rest;
                Some(Box::new(price))
            }
            _ => return None,
        };
        Some((Some(currency), price))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::from(self.u16()?);
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn part(&mut self) -> Option<Part> {
        let unit = *UNITS.get(usize::from(self.byte()?))?;
        let (rule_id, tag) = (self.text()?, self.text()?.into_boxed_str());
        let salt = self.chunk().map(u128::from_le_bytes)?;
        let values = self.byte()?;
        if values > MAX_KEY_PARTS {
            return None;
        }
        let key = (0..values).map(|_| self.text()).collect::<Option<Vec<_>>>()?;
        let (home, limit, receipt) = (self.home()?, self.limit()?, self.receipt()?);
        let is_remote = false;
        Some(Part { unit, rule_id, tag, salt, key, home, limit, receipt, is_remote })
    }

    fn home(&mut self) -> Option<Home> {
        let store = self.byte()?;
        let (has_partition, partition) = (self.byte()? == 1, self.byte()?);
        let (secret_parts, concealed_parts) = (self.u32()?, self.u32()?);
        let (kind, max_overshoot_ppm) = (self.byte()?, self.u32()?);
        let consistency = match kind {
            0 => Consistency::Strict,
            1 => Consistency::Leased { max_overshoot_ppm },
            2 => Consistency::Local,
            _ => return None,
        };
        let on_failure = match self.byte()? {
            0 => OnFailure::Local,
            1 => OnFailure::Open,
            2 => OnFailure::Closed,
            _ => return None,
        };
        let partition = has_partition.then_some(partition);
        Some(Home { store, partition, secret_parts, concealed_parts, consistency, on_failure })
    }

    fn limit(&mut self) -> Option<Limit> {
        let algorithm = *Algorithm::ALL.get(usize::from(self.byte()?))?;
        let (quota, capacity, slot_ttl) = (self.u64()?, self.u64()?, self.u64()?);
        let window = match self.byte()? {
            0 => Window::Every(self.u64()?),
            1 => {
                let unit = *CalendarUnit::ALL.get(usize::from(self.byte()?))?;
                let anchor = Some(self.byte()?).filter(|_| unit == CalendarUnit::Month);
                Window::Calendar(Calendar::new(unit, &self.text()?, anchor).ok()?)
            }
            _ => return None,
        };
        let burst = (algorithm.is_bucket() && quota > 0).then_some(capacity);
        Limit::new(LimitSpec { algorithm, quota, window, burst, slot_ttl }).ok()
    }

    fn receipt(&mut self) -> Option<Receipt> {
        let kind = self.byte()?;
        if kind == 4 {
            return self.chunk().map(|id| Receipt::Slot(SlotId(u128::from_le_bytes(id))));
        }
        let (first, second, cost) = (self.u64()?, self.u64()?, self.u64()?);
        Some(match kind {
            0 => Receipt::Nothing,
            1 => Receipt::Window { end: first, at: second, cost },
            2 => Receipt::Log { at: first, cost },
            3 => Receipt::Bucket { at: first, cost },
            5 => Receipt::Open { at: first, cost },
            6 => Receipt::LatestOfBucket { cost },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::{MICRO, SECOND};
    use tollgate_store::MemoryStore;

    use super::*;

    fn receipts() -> Receipts {
        let calendar =
            |unit, zone, anchor| Window::Calendar(Calendar::new(unit, zone, anchor).unwrap());
        let month = calendar(CalendarUnit::Month, "Europe/Berlin", Some(15));
        let day = calendar(CalendarUnit::Day, "America/New_York", None);
        let mut parts = Vec::new();
        let windows = [Window::Every(7 * SECOND), month, day];
        let receipts = [
            Receipt::Window { end: 9, at: 8, cost: 3 },
            Receipt::Log { at: 5, cost: u64::MAX },
            Receipt::Bucket { at: 7, cost: 1 },
            Receipt::Slot(SlotId(u128::MAX - 7)),
        ];
        for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            for (window, receipt) in windows.iter().zip(receipts) {
                let is_calendar = matches!(window, Window::Calendar(_));
                if is_calendar && algorithm != Algorithm::FixedWindow {
                    continue;
                }
                let burst = algorithm.is_bucket().then_some(13);
                let (window, slot_ttl) = (window.clone(), 30 * MICRO);
                let spec = LimitSpec { algorithm, quota: 70, window, burst, slot_ttl };
                let home = Home {
                    store: 3,
                    partition: (number % 2 == 0).then_some(1),
                    secret_parts: 2,
                    concealed_parts: 0,
                    consistency: Consistency::Leased { max_overshoot_ppm: 77 },
                    on_failure: OnFailure::Closed,
                };
                parts.push(Part {
                    unit: UNITS[number % UNITS.len()],
                    rule_id: format!("rule {number} é"),
                    tag: "tag".into(),
                    salt: 1 << 100 | number as u128,
                    key: vec!["a".to_owned(), String::new(), "ü:{}".to_owned()],
                    home,
                    limit: Limit::new(spec).unwrap(),
                    receipt,
                    is_remote: false,
                });
            }
        }
        parts.push(Part { receipt: Receipt::Slot(SlotId(9)), ..parts[0].clone() });
        Receipts { parts, ..Receipts::default() }
    }

    /// The debug output of every field, without the window that a calendar has cached.
    fn printed(receipts: &Receipts) -> String {
        let text = format!("{:?}", receipts.parts);
        let mut kept = String::new();
        for piece in text.split("memo: ") {
            kept.push_str(piece.trim_start_matches(|letter: char| letter.is_ascii_digit()));
        }
        kept
    }

    #[test]
    fn what_is_encoded_is_decoded_and_limits_are_the_same() {
        let receipts = receipts();
        let bytes = encode(&receipts, 5, &MemoryStore::new(1));
        let read = decode(&bytes, 5).unwrap();
        assert_eq!(printed(&read), printed(&receipts));
        for (one, other) in read.parts.iter().zip(&receipts.parts) {
            for now in [0, 1_794_740_000 * SECOND, 1_800_000_123 * SECOND + 7] {
                assert_eq!(one.limit.window_bounds(now), other.limit.window_bounds(now));
                assert_eq!(one.limit.time_of(3), other.limit.time_of(3));
            }
        }
    }

    #[test]
    fn a_record_says_whether_a_fallback_of_this_node_charged() {
        for is_here in [false, true] {
            let receipts = Receipts { is_here, ..receipts() };
            let bytes = encode(&receipts, 5, &MemoryStore::new(1));
            assert_eq!(decode(&bytes, 5).unwrap().is_here, is_here);
        }
    }

    /// The same charges, with money at a price.
    fn priced() -> Receipts {
        let file = "prices: [{model: m, currency: EUR, per_million: {input: \"1\", output: \"2\"}, \
                    long_context: {above: 9, input: \"3\"}}]";
        let prices = tollgate_policy::prices::PriceTable::parse(file, "prices").unwrap();
        let price = prices.price("m", 0).cloned().map(Box::new);
        Receipts { currency: Currency::from_code("EUR"), price, ..receipts() }
    }

    #[test]
    fn the_price_at_admission_is_kept() {
        for receipts in [priced(), Receipts { price: None, is_here: true, ..priced() }] {
            let bytes = encode(&receipts, 5, &MemoryStore::new(1));
            let read = decode(&bytes, 5).unwrap();
            assert_eq!((read.currency, &read.price), (receipts.currency, &receipts.price));
            assert_eq!(read.is_here, receipts.is_here);
            assert_eq!(printed(&read), printed(&receipts));
            for length in 0..bytes.len() {
                assert!(decode(&bytes[..length], 5).is_none(), "{length}");
            }
        }
    }

    #[test]
    fn what_is_cut_or_strange_is_refused() {
        let bytes = encode(&receipts(), 5, &MemoryStore::new(1));
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length], 5).is_none(), "{length}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode(&longer, 5).is_none());
        let mut other = bytes;
        other[0] = FORMAT_MONEY_HERE + 1;
        assert!(decode(&other, 5).is_none());
    }

    #[test]
    fn what_another_node_counts_alone_stays_as_it_is() {
        let mut receipts = receipts();
        receipts.parts[0].home.consistency = Consistency::Local;
        let bytes = encode(&receipts, 5, &MemoryStore::new(1));
        let remote_parts =
            |receipts: Receipts| receipts.parts.iter().filter(|part| part.is_remote).count();
        assert_eq!(remote_parts(decode(&bytes, 5).unwrap()), 0);
        assert_eq!(remote_parts(decode(&bytes, 6).unwrap()), 1);
    }
}
