//! Makes the eBPF objects available to `include_bytes!`, as the dataplane crate does; empty where it was not built.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=ONEARM_BPF_DIR");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let dir = env::var_os("ONEARM_BPF_DIR").map(PathBuf::from);
    for object in ["onearm-xdp.o", "onearm-bench.o"] {
        let built = dir.as_ref().map(|dir| dir.join(object));
        if let Some(path) = &built {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        let bytes = built.and_then(|path| fs::read(path).ok()).unwrap_or_default();
        fs::write(out.join(object), bytes).expect("write into OUT_DIR");
    }
}
