//! Makes the eBPF objects available to `include_bytes!`.
//!
//! `make bpf` puts them into `$ONEARM_BPF_DIR`; an object that is not there becomes an empty file, so that a machine
//! without the BPF toolchain still builds, lints and tests the rest. Loading an empty object is a typed error.

use std::{env, fs, path::PathBuf};

const OBJECTS: [&str; 3] = ["onearm-xdp.o", "onearm-bench.o", "onearm-decap.o"];

fn main() {
    println!("cargo:rerun-if-env-changed=ONEARM_BPF_DIR");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let dir = env::var_os("ONEARM_BPF_DIR").map(PathBuf::from);
    for object in OBJECTS {
        let built = dir.as_ref().map(|d| d.join(object));
        let bytes = built.as_ref().and_then(|p| fs::read(p).ok()).unwrap_or_default();
        if let Some(p) = &built {
            println!("cargo:rerun-if-changed={}", p.display());
        }
        fs::write(out.join(object), bytes).expect("write into OUT_DIR");
    }
}
