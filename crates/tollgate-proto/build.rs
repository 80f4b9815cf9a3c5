//! Makes Rust of the files under `proto/`, without a protocol compiler on the machine.

use std::error::Error;
use std::path::PathBuf;

/// A link to the folder of the repository, so that the package has the files, too.
const ROOT: &str = "proto";

const FILES: [&str; 2] = ["tollgate/v1/rate_limiter.proto", "envoy/service/ratelimit/v3/rls.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let mut compiler = protox::Compiler::new([ROOT])?;
    compiler.include_imports(true).include_source_info(true).open_files(FILES)?;
    let described = compiler.file_descriptor_set();
    // For reflection, which needs no comments.
    let bytes = compiler.include_source_info(false).encode_file_descriptor_set();
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), bytes)?;
    tonic_prost_build::configure()
        .build_transport(false)
        .bytes(".envoy")
        // Small maps, read in one pass: a tree needs no hasher and no spare room.
        .btree_map(".tollgate.v1")
        .compile_fds(described)?;
    Ok(())
}
