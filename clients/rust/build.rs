//! Generates the messages and the clients from the committed descriptor: no protoc is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;
use prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("proto/sessiond.binpb");
    println!("cargo:rerun-if-changed={}", path.display());
    let descriptors = FileDescriptorSet::decode(fs::read(&path)?.as_slice())?;
    tonic_prost_build::configure()
        .build_server(env::var("CARGO_FEATURE_SERVER").is_ok())
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}
