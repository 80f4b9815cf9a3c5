//! The last known good set, on a node's disk: what it starts from when nobody answers.
//!
//! The file is written aside and renamed, and ends with a hash of all before it: a torn one is refused.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::content::{Content, ContentError, Manifest, Part};

/// What the file begins with.
const MAGIC: &[u8; 16] = b"tollgate-set 1\n\0";

/// The largest file that is read.
const MAX_BYTES: u64 = 1 << 30;

/// Why a kept set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// What it says makes no sense.
    #[error(transparent)]
    Content(#[from] ContentError),
}

/// Keeps a set in this file.
pub fn keep(path: &Path, content: &Content) -> std::io::Result<()> {
    let aside = path.with_extension("new");
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    // Rules may name API keys.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = std::io::BufWriter::new(options.open(&aside)?);
    let mut hash = Xxh3Default::new();
    let mut write = |bytes: &[u8]| {
        hash.update(bytes);
        file.write_all(bytes)
    };
    let manifest = content.manifest().to_bytes();
    write(MAGIC)?;
    for bytes in std::iter::once(&*manifest).chain(content.parts().map(|part| &*part.bytes)) {
        write(&(bytes.len() as u64).to_le_bytes())?;
        write(bytes)?;
    }
    let end = hash.digest().to_le_bytes();
    file.write_all(&end)?;
    let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    // The name, too, must survive a power cut.
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// The set that is kept in this file; `None`: none is.
pub fn find(path: &Path) -> Result<Option<Content>, KeptError> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_BYTES).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(read(&bytes)?))
}

fn read(bytes: &[u8]) -> Result<Content, ContentError> {
    let (body, end) =
        bytes.split_last_chunk::<8>().ok_or(ContentError::Damaged("it is too short"))?;
    if xxh3_64(body) != u64::from_le_bytes(*end) {
        return Err(ContentError::Damaged("its hash is wrong"));
    }
    let mut rest = body.strip_prefix(MAGIC).ok_or(ContentError::Damaged("it is another file"))?;
    let mut next = || {
        let (length, after) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (bytes, after) = after.split_at_checked(length)?;
        rest = after;
        Some(bytes)
    };
    let manifest = Manifest::parse(next().ok_or(ContentError::Damaged("it has no manifest"))?)?;
    // In the order of the manifest.
    manifest.assemble(|_| next().map(Part::new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn content() -> Content {
        Content {
            installation: "a".to_owned(),
            revision: 7,
            enforcement: Some("shadow".to_owned()),
            document: Part::new(b"{\"rules\":[]}".to_vec()),
            buckets: BTreeMap::from([(3, Part::new(vec![1, 2])), (200, Part::new(vec![]))]),
            keys: BTreeMap::from([(9, Part::new(b"[]".to_vec()))]),
        }
    }

    #[test]
    fn a_set_comes_back_and_damage_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.kept");
        assert!(find(&path).unwrap().is_none());
        keep(&path, &content()).unwrap();
        assert_eq!(find(&path).unwrap(), Some(content()));
        let whole = std::fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut torn = whole.clone();
            torn[place] ^= 0x55;
            assert!(read(&torn).is_err(), "{place}");
            assert!(read(&whole[..place]).is_err(), "{place}");
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn a_form_of_another_version_is_named() {
        let manifest = br#"{"format": 3, "whatever": []}"#;
        assert_eq!(Manifest::parse(manifest), Err(ContentError::Format(3)));
        let more = content().manifest().to_bytes();
        let more = String::from_utf8(more).unwrap().replacen('{', "{\"later\": 1,", 1);
        assert_eq!(Manifest::parse(more.as_bytes()), Ok(content().manifest()), "may say more");
    }
}
