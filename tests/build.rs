//! Makes the eBPF object available to `include_bytes!`, as the dataplane crate does; empty where it was not built.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=ONEARM_BPF_DIR");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = env::var_os("ONEARM_BPF_DIR").map(|dir| PathBuf::from(dir).join("onearm-xdp.o"));
    if let Some(path) = &built {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let bytes = built.and_then(|path| fs::read(path).ok()).unwrap_or_default();
    fs::write(out.join("onearm-xdp.o"), bytes).expect("write into OUT_DIR");
}
