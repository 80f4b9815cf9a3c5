//! Why there is no report.

use std::io;

use crate::traffic::MAX_FILES;

/// Why a backtest could not be carried out. Every message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BacktestError {
    /// A file cannot be opened.
    #[error("{file} cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// A recording cannot be read from its beginning.
    #[error("{file}: {source}")]
    Recording {
        /// The file.
        file: String,
        /// Why.
        source: tollgate_recording::ReadError,
    },
    /// No line looks like a known format.
    #[error(
        "the format of {file} is not recognized; state it with --format (recording, combined, common, \
         json, alb or csv). The file begins with: {first_line}"
    )]
    UnknownFormat {
        /// The file.
        file: String,
        /// How it begins.
        first_line: String,
    },
    /// The header of a CSV file names nothing that could be the time.
    #[error(
        "no column of {file} is the time of a request; add --map COLUMN=time. Columns: {columns}"
    )]
    NoTimeColumn {
        /// The file.
        file: String,
        /// Its columns.
        columns: String,
    },
    /// There was nothing to replay.
    #[error("no line could be replayed; {details}")]
    NothingReplayed {
        /// What was wrong with the first lines.
        details: String,
    },
    /// More files than can be open at once.
    #[error("at most {MAX_FILES} files of traffic are merged at once; concatenate some of them")]
    TooManyFiles,
}

/// Why an option is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionError(pub String);
