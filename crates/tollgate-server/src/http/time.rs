//! Instants as people and headers write them.

use std::fmt;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::{Serialize, Serializer};
use tollgate_core::Nanos;

/// An instant in RFC 3339, to the millisecond, rounded up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rfc3339(pub(crate) Nanos);

const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = i64::try_from(self.0.div_ceil(1_000_000)).unwrap_or(i64::MAX);
        let at = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX);
        PRINTER.print_timestamp(&at, jiff::fmt::StdFmtWrite(f)).map_err(|_| fmt::Error)
    }
}

impl Serialize for Rfc3339 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
