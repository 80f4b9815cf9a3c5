//! Lists the files of the console, so that the binary carries them. Where it has not been built there are none:
//! Rust alone is enough to build Tollgate.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What `make console` makes, and of what.
const DIST: &str = "../../console/dist";
const SOURCES: &str = "../../console";

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    let root = here.join(DIST);
    let mut files = Vec::new();
    println!("cargo:rerun-if-changed=build.rs");
    if root.join("index.html").exists() {
        collect(&root, &mut files)?;
    } else if here.join(SOURCES).exists() {
        // What is missing counts as changed, always: its folder is watched instead.
        println!("cargo:rerun-if-changed={SOURCES}");
    }
    files.sort();
    let mut list = String::from("pub(super) const FILES: &[File] = &[\n");
    for file in files.iter().filter(|file| !is_compressed(file)) {
        let path = file.strip_prefix(&root)?.to_str().ok_or("a file's name is no text")?;
        let path = path.replace('\\', "/");
        let bytes = |ending: &str| -> Result<String, Box<dyn Error>> {
            let file = file.to_str().ok_or("a folder's name is no text")?;
            Ok(format!("include_bytes!({:?})", format!("{file}{ending}")))
        };
        let coded = |ending: &str| -> Result<String, Box<dyn Error>> {
            let there = files.iter().any(|other| *other == with_ending(file, ending));
            if there { Ok(format!("Some({})", bytes(ending)?)) } else { Ok("None".to_owned()) }
        };
        writeln!(
            list,
            "    File {{ path: {:?}, plain: {}, gzip: {}, brotli: {} }},",
            format!("/{path}"),
            bytes("")?,
            coded(".gz")?,
            coded(".br")?
        )?;
    }
    list.push_str("];\n");
    fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("console.rs"), list)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            println!("cargo:rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gz" || ending == "br")
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
