//! The key that signs the history of changes: configured, or a file in the data directory.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use tollgate_control::Signer;

use crate::config::Config;

/// The file in the data directory.
const KEY_FILE: &str = "history.key";

/// The most bytes that are read of it.
const MAX_KEY_FILE_BYTES: u64 = 1_024;

/// The key of this node. Without one changes are made, and are not signed: `tollgate audit verify` reports it.
pub(super) fn signer(config: &Config) -> Option<Arc<Signer>> {
    if !config.has_control() {
        return None;
    }
    if let Some(text) = &config.control.signing_key.text {
        // The configuration was checked.
        return Signer::from_hex(text).ok().map(Arc::new);
    }
    let Some(folder) = &config.data_dir else {
        tracing::warn!(
            "changes are not signed: set history.signing_key_file or data_dir, so that this node has a key"
        );
        return None;
    };
    match key_in(folder) {
        Ok(signer) => Some(Arc::new(signer)),
        Err(error) => {
            tracing::error!(%error, file = KEY_FILE, "changes are not signed: the key cannot be used");
            None
        }
    }
}

/// The key in this folder, made if there is none.
fn key_in(folder: &Path) -> io::Result<Signer> {
    let path = folder.join(KEY_FILE);
    let found = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        opened => Some(opened?),
    };
    let text = match found {
        Some(file) => read(file)?,
        None => make(&path)?,
    };
    Signer::from_hex(&text).map_err(io::Error::other)
}

fn read(file: File) -> io::Result<String> {
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        tracing::warn!(file = KEY_FILE, "others can read the key that signs changes: chmod 600");
    }
    let mut text = String::new();
    file.take(MAX_KEY_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A new key. It is whole before it has its name: a node that stops in between leaves no half of one.
fn make(path: &Path) -> io::Result<String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = Signer::new_hex().map_err(io::Error::other)?;
    let new = path.with_extension("key.new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_nobody_else_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("data");
        let made = key_in(&inner).unwrap().public_key();
        assert_eq!(key_in(&inner).unwrap().public_key(), made, "after a restart");
        let mode = inner.join(KEY_FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEY_FILE);
        std::fs::write(&path, "half a key").unwrap();
        assert!(key_in(folder.path()).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "half a key");
    }
}
